#!/bin/sh
# Runs jobs on this machine, with GPUs that it is only said to have. Usage: agent.sh NAME MANAGER_ADDRESS GPUS
set -eu

cat >/etc/farside/agent.toml <<EOT
node = "$1"
manager = "ws://$2:7680"
declared_gpus = $3
EOT
farside config check --for agent
# Again at each provisioning, since the code may be another; jobs run on meanwhile.
systemctl stop farside-agent 2>/dev/null || true
systemctl reset-failed farside-agent 2>/dev/null || true
systemd-run --unit=farside-agent --property=Restart=on-failure --property=KillMode=process \
	--property=RuntimeDirectory=farside --property=RuntimeDirectoryPreserve=yes /usr/local/bin/farside agent

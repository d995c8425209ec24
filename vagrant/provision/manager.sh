#!/bin/sh
# Runs the cluster's manager. Usage: manager.sh NAME ADDRESS; the nodes' token lies in /etc/farside/agent.token
set -eu

cat >/etc/farside/manager.toml <<EOT
node = "$1"
listen = ["unix:/run/farside/manager.sock", "tcp:$2:7680"]
plain_http = true                    # on a network of this host's own machines
EOT
hash=$(tr -d '\n' </etc/farside/agent.token | sha256sum | cut -d' ' -f1)
printf '[[token]]\nname = ""\nrole = "node"\nsha256 = "%s"\n' "$hash" >/etc/farside/tokens.toml
chmod 0600 /etc/farside/tokens.toml
install -d -m 0711 /var/lib/farside
farside config check --for manager
# Again at each provisioning, since the code may be another.
systemctl stop farside-manager 2>/dev/null || true
systemctl reset-failed farside-manager 2>/dev/null || true
systemd-run --unit=farside-manager --property=Restart=on-failure --property=RuntimeDirectory=farside \
	--property=RuntimeDirectoryPreserve=yes /usr/local/bin/farside manager

#!/bin/sh
# Runs the cluster's manager. Usage: manager.sh NAME ADDRESS NODE=SHA256...: the hash of each node's token
set -eu

cat >/etc/farside/manager.toml <<EOT
node = "$1"
listen = ["unix:/run/farside/manager.sock", "tcp:$2:7680"]
plain_http = true                    # on a network of this host's own machines
EOT
install -m 0600 /dev/null /etc/farside/tokens.toml
shift 2
for token in "$@"; do
	printf '[[token]]\nname = "%s"\nrole = "node"\nsha256 = "%s"\n' "${token%%=*}" "${token#*=}" >>/etc/farside/tokens.toml
done
install -d -m 0711 /var/lib/farside
farside config check --for manager
# Again at each provisioning, since the code may be another.
systemctl stop farside-manager 2>/dev/null || true
systemctl reset-failed farside-manager 2>/dev/null || true
systemd-run --unit=farside-manager --property=Restart=on-failure --property=RuntimeDirectory=farside \
	--property=RuntimeDirectoryPreserve=yes /usr/local/bin/farside manager

#!/bin/sh
# Installs what a guest of the tests has: the same list as the image of tests/vm.
set -eu

grep -v '^#' /opt/farside/tests/vm/image/packages.txt | xargs /opt/farside/tools/install_packages.sh make linux-image-amd64

#!/usr/bin/env bash
# A base image where no registry can be reached: Debian with Python, as a tar that `docker import` and `podman import`
# take, and that stands in for debian:12-slim as BASE of our Dockerfiles.
#
#   containers/build-base.sh base.tar [PACKAGE…]
#   docker import -c 'CMD ["/bin/sh"]' base.tar belljar-base:latest
set -euo pipefail

out=${1:?where to write the tar}
shift
suite=${SUITE:-bookworm}
# Where this machine gets its own packages from; else whatever the tool takes by itself.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/\?$' || true)}
packages=(ca-certificates netbase python3 python3-venv "$@")
list=$(IFS=,; echo "${packages[*]}")

mkdir -p "$(dirname "$out")"
if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --format=tar --variant=minbase --include="$list" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook='ln -sf python3 "$1/usr/bin/python"' \
        "$suite" "$out.new" ${mirror:+"$mirror"}
elif command -v debootstrap >/dev/null; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include="$list" "$suite" "$root" ${mirror:+"$mirror"}
    ln -sf python3 "$root/usr/bin/python"
    tar -C "$root" --exclude=./var/cache/apt --exclude=./dev -cf "$out.new" .
else
    echo "install mmdebstrap or debootstrap first" >&2
    exit 1
fi
mv "$out.new" "$out"

#!/usr/bin/env bash
# Build docker/Dockerfile and run the demo in the image.
#
#   docker/build.sh          # tag hypergrit
#   docker/build.sh NAME     # another tag
#
# With Docker or Podman, the base image is pulled from its registry. Without them, buildah builds in a chroot, which needs
# neither a daemon nor namespaces, on a Debian that mmdebstrap makes from Debian's packages:
#
#   apt-get install buildah mmdebstrap && docker/build.sh
#
# That takes root, 20 GB of disk while it builds, and about five minutes. Its container sees the certificates and the
# configuration of pip and uv of this machine, so that a mirror of the packages is used in the build too.
set -euo pipefail

cd "$(dirname "$0")/.."
tag=${1:-hypergrit}

for engine in docker podman; do
    if "$engine" info >/dev/null 2>&1; then
        "$engine" build --file docker/Dockerfile --tag "$tag" .
        exec "$engine" run --rm --shm-size 2g "$tag" make demo
    fi
done

for tool in buildah mmdebstrap; do
    command -v "$tool" >/dev/null || { echo "$0: no Docker or Podman answers, and $tool is not installed" >&2; exit 2; }
done

base=localhost/hypergrit-base:bookworm
volumes=()
for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/uv/uv.toml; do
    [[ -e $file ]] && volumes+=(--volume "$file:$file:ro")
done

container='' archive=$(mktemp --suffix .tar)
clean() {
    rm -f "$archive"
    [[ -z $container ]] || buildah rm "$container" >/dev/null
}
trap clean EXIT

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$archive"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$archive" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
    container=
fi
buildah build --isolation chroot --layers=false --build-arg "BASE=$base" "${volumes[@]}" --file docker/Dockerfile --tag "$tag" .
container=$(buildah from "$tag")
buildah run --isolation chroot "$container" -- make demo

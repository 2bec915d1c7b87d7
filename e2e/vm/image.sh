#!/usr/bin/env bash
# Builds the arm64 Debian machine that the tests of this folder boot, and prints the
# folder it lies in (the last line of stdout): root.ext4, vmlinuz, initrd.
#
#   e2e/vm/image.sh        some minutes the first time, nothing after that
#
# Everything comes from the Debian archive that apt on this machine is set up for. The
# image lies in $SPARKRUN_CI_CACHE/vm (default ~/.cache/sparkrun-ci/vm) under a name made
# from this script and the release, so that a change of either builds a new one. Needs
# root: a file system with other people's files is made, and foreign programs are run.
set -euo pipefail

packages=mmdebstrap,qemu-user-static,e2fsprogs,cpio,zstd,xz-utils,util-linux
include=systemd,systemd-sysv,dbus,udev,kmod,sudo,python3-minimal,busybox-static
# What the machine needs before it has a root file system, in the order of loading.
# virtio_pci's two halves are named since an older kernel does not pull them in.
modules=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc32c_generic ext4)

self=$(realpath "${BASH_SOURCE[0]}")
cache=${SPARKRUN_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkrun-ci}/vm
work='' registered='' mounted=''

say() { echo "image.sh: $*" >&2; }
fail() {
  say "$@"
  exit 1
}

finish() {
  local status=$?
  [ -z "$work" ] || rm -rf --one-file-system "$work"
  [ -z "$registered" ] || echo -1 >"$registered" 2>/dev/null || true
  [ -z "$mounted" ] || umount /proc/sys/fs/binfmt_misc 2>/dev/null || true
  exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------------------- the source

# The archive as apt knows it, `deb URI RELEASE COMPONENT`, Debian's own parts only. Who a
# source belongs to stands in its downloaded index.
archive() {
  # shellcheck disable=SC2016 # apt fills these in
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u
}

# Makes this machine run arm64 programs, by the kernel's binfmt_misc, until the end of
# this script. The F flag opens the emulator now, so that it is found inside the chroot.
foreign() {
  [ "$(dpkg --print-architecture)" != arm64 ] || return 0
  local dir=/proc/sys/fs/binfmt_misc entry
  if [ ! -e $dir/register ]; then
    mount -t binfmt_misc binfmt_misc $dir 2>/dev/null ||
      fail "cannot mount binfmt_misc on $dir: arm64 programs cannot be run here (a container without the privilege, or a kernel without CONFIG_BINFMT_MISC)"
    mounted=yes
  fi
  [ "$(cat $dir/status)" = enabled ] || fail "binfmt_misc is disabled on this machine (echo 1 >$dir/status)"
  for entry in "$dir"/*; do
    if grep -qs '^enabled' "$entry" && grep -qs '^interpreter .*aarch64' "$entry" && grep -qs '^flags: .*F' "$entry"; then
      return 0
    fi
  done
  # ELF, 64 bit, little endian, executable or shared object, machine 0xb7.
  # shellcheck disable=SC2028 # the kernel reads the escapes
  echo ':sparkrun-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$(command -v qemu-aarch64-static)"':F' >$dir/register ||
    fail "cannot register qemu-aarch64-static in $dir: arm64 programs cannot be run here"
  registered=$dir/sparkrun-aarch64
}

# ---------------------------------------------------------------------------- the parts

# Debian with systemd, no kernel package: that would build an initramfs under emulation,
# which takes longer than everything else. The kernel is unpacked instead.
bootstrap() {
  local sources=$work/sources.list
  archive >"$sources"
  if [ ! -s "$sources" ]; then
    apt-get update -q >"$work/update.log" 2>&1 || tail -5 "$work/update.log" >&2
    archive >"$sources"
  fi
  [ -s "$sources" ] || fail "apt on this machine has no Debian archive (see /etc/apt/sources.list)"
  # Proxies and the dates of a mirror of yesterday hold for this archive as for apt.
  apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-Date|Check-Valid-Until|Retries|AllowReleaseInfoChange)' >"$work/apt.conf" || true

  # shellcheck disable=SC2016 # $1 is for the hook's shell
  mmdebstrap --quiet --mode=root --architectures=arm64 --variant=essential --include="$include" --skip=check/qemu \
    --aptopt="$work/apt.conf" --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --customize-hook="$(printf '%q customize "$1" %q' "$self" "$work")" \
    "" "$work/root" "$sources" >"$work/mmdebstrap.log" 2>&1 || {
    tail -40 "$work/mmdebstrap.log" >&2
    fail "mmdebstrap did not finish (its last words stand above)"
  }
}

# Called back by mmdebstrap while its apt still knows the archive.
customize() {
  local root=$1 work=$2 package
  export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
  package=$(apt-cache depends --important linux-image-cloud-arm64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
  [ -n "$package" ] || fail "the archive has no linux-image-cloud-arm64"
  mkdir "$work/deb"
  # apt would drop its privileges to a user who cannot write here.
  (cd "$work/deb" && apt-get -o APT::Sandbox::User=root download "$package")
  dpkg-deb -x "$work"/deb/*.deb "$work/kernel"
}

# The files of a machine that has one purpose.
configure() {
  local root=$work/root unit
  # /lib is a link in the image, and cp would put a folder in its place.
  mkdir -p "$root/usr/lib/modules"
  cp -a "$work/kernel/lib/modules/." "$root/usr/lib/modules/"
  [ ! -d "$work/kernel/usr/lib/modules" ] || cp -a "$work/kernel/usr/lib/modules/." "$root/usr/lib/modules/"
  chroot "$root" depmod "$version"

  echo sparkrun-vm >"$root/etc/hostname"
  printf '127.0.0.1 localhost sparkrun-vm\n' >"$root/etc/hosts"
  echo '/dev/vda / ext4 rw 0 0' >"$root/etc/fstab"
  # With an ID it is no first boot, which would cost a quarter of a minute.
  tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
  chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 worker
  chroot "$root" useradd --create-home --shell /bin/bash --uid 1001 admin
  echo 'admin ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/admin"
  chmod 0440 "$root/etc/sudoers.d/admin"
  # A journal that survives the reset is what the flight recorder reads.
  mkdir -p "$root/var/log/journal"
  mkdir -p "$root/etc/systemd/journald.conf.d"
  printf '[Journal]\nStorage=persistent\nSyncIntervalSec=1s\n' >"$root/etc/systemd/journald.conf.d/sparkrun.conf"
  # Nothing that costs emulated seconds, and nothing else that writes to the console.
  for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer \
    getty.target getty@tty1.service serial-getty@ttyAMA0.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-networkd.service systemd-networkd.socket systemd-network-generator.service systemd-pstore.service systemd-firstboot.service systemd-machine-id-commit.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
  done

  # The tests hand their files in as a tar on the second disk.
  mkdir -p "$root/var/lib/sparkrun-vm"
  cat >"$root/usr/local/sbin/sparkrun-vm" <<'SH'
#!/bin/sh
set -eu
cd /var/lib/sparkrun-vm
tar -xf /dev/vdb
exec ./start
SH
  chmod 0755 "$root/usr/local/sbin/sparkrun-vm"
  # The plan outlives the out-of-memory kills that it provokes.
  cat >"$root/etc/systemd/system/sparkrun-vm.service" <<'UNIT'
[Unit]
Description=Tests of sparkrun
After=basic.target dbus.service
[Service]
ExecStart=/usr/local/sbin/sparkrun-vm
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyAMA0
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
Delegate=yes
OOMPolicy=continue
OOMScoreAdjust=-1000
TasksMax=infinity
KillMode=process
[Install]
WantedBy=multi-user.target
UNIT
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  ln -sf ../sparkrun-vm.service "$root/etc/systemd/system/multi-user.target.wants/sparkrun-vm.service"
  ln -sf /usr/lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/etc/apt/sources.list* "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/usr/share/doc
}

# load NAME: adds a module's file and, before it, what it needs, to the initramfs.
declare -A loaded=()
load() {
  local name=$1 line file dependency
  local index=$work/root/usr/lib/modules/$version
  if grep -q "/$name\.ko" "$index/modules.builtin"; then return 0; fi
  # The file may be spelled with a dash where the module's name has a line.
  line=$(grep -E "/${name//_/[-_]}\.ko(\.[a-z]+)?:" "$index/modules.dep" || true)
  if [ -z "$line" ]; then
    say "the kernel $version has no module $name"
    return 0
  fi
  file=${line%%:*}
  if [ -n "${loaded[$file]:-}" ]; then return 0; fi
  loaded[$file]=yes
  # modules.dep names the last to be loaded first.
  for dependency in $(tr ' ' '\n' <<<"${line#*:}" | tac); do
    dependency=$(basename "$dependency")
    load "${dependency%%.ko*}"
  done
  local plain
  plain=$work/initramfs/lib/$(basename "${file%%.ko*}").ko
  case $file in
    *.ko) cp "$index/$file" "$plain" ;;
    *.ko.xz) xz -dc "$index/$file" >"$plain" ;;
    *.ko.zst) zstd -qdc "$index/$file" >"$plain" ;;
    *) fail "cannot unpack the kernel module $file" ;;
  esac
  echo "insmod /lib/$(basename "$plain")" >>"$work/initramfs/init"
}

initramfs() {
  local dir=$work/initramfs name
  mkdir -p "$dir"/{bin,lib,dev,proc,sys,root}
  cp "$work/root/usr/bin/busybox" "$dir/bin/busybox" 2>/dev/null || cp "$work/root/bin/busybox" "$dir/bin/busybox"
  ln -s busybox "$dir/bin/sh"
  cat >"$dir/init" <<'SH'
#!/bin/sh
export PATH=/bin
for name in mount insmod sleep switch_root echo poweroff; do busybox ln -sf busybox /bin/$name; done
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
SH
  for name in "${modules[@]}"; do load "$name"; done
  cat >>"$dir/init" <<'SH'
n=0
while [ ! -b /dev/vda ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n + 1)); done
mount -t ext4 /dev/vda /root || { echo 'VM no root file system on /dev/vda'; poweroff -f; }
mount --move /dev /root/dev
mount --move /proc /root/proc
mount --move /sys /root/sys
exec switch_root /root /sbin/init
SH
  chmod 0755 "$dir/init"
  (cd "$dir" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | zstd -q -3 >"$work/out/initrd"
}

build() {
  local begin=$SECONDS kernel
  # A leftover of a build that was killed: the lock says that nobody is at it.
  rm -rf --one-file-system "$cache"/build.*
  work=$(mktemp -d "$cache/build.XXXXXX")
  mkdir "$work/out"
  foreign
  say "building an arm64 Debian ($release), which takes some minutes"
  bootstrap
  version=$(basename "$(echo "$work"/kernel/boot/vmlinuz-* )")
  version=${version#vmlinuz-}
  configure
  say "userland and kernel $version after $((SECONDS - begin)) s"
  initramfs
  kernel=$work/kernel/boot/vmlinuz-$version
  cp "$kernel" "$work/out/vmlinuz"
  # sparkrun keeps 2 GiB free, and there must be some more. The file has holes.
  truncate -s 6G "$work/out/root.ext4"
  mke2fs -q -F -t ext4 -i 65536 -L sparkrun-vm -E lazy_itable_init=0,lazy_journal_init=0 -d "$work/root" "$work/out/root.ext4"
  sync -f "$work/out"
  rm -rf --one-file-system "$image"
  mv -T "$work/out" "$image"
  say "built in $((SECONDS - begin)) s: $(du -sh "$image" | cut -f1) in $image"
}

# ---------------------------------------------------------------------------- main

if [ "${1:-}" = customize ]; then
  trap - EXIT
  customize "$2" "$3"
  exit
fi
[ $# = 0 ] || fail "takes no arguments"
[ "$(id -u)" = 0 ] || fail "root is needed: the image is made of other users' files"
missing=()
for entry in mmdebstrap qemu-aarch64-static mke2fs cpio zstd xz flock apt-get dpkg-deb; do
  [ "$entry" = qemu-aarch64-static ] && [ "$(dpkg --print-architecture)" = arm64 ] || command -v "$entry" >/dev/null || missing+=("$entry")
done
[ ${#missing[@]} -eq 0 ] || fail "missing here: ${missing[*]} (Debian packages: $packages)"

# shellcheck disable=SC1091 # whichever Debian this is
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-unknown}")
image=$cache/$(cat "$self" - <<<"$release" | sha256sum | cut -c1-16)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$image/root.ext4" ]; then
  touch "$image"
else
  build 9>&-
  # An image of last week's script serves nobody; one of another checkout may be in use.
  find "$cache" -mindepth 1 -maxdepth 1 -type d -name '????????????????' -mtime +7 -exec rm -rf {} +
fi
echo "$image"

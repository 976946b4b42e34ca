#!/bin/bash
# Builds a disk image and prints its path: image.sh [grub|grub-efi|ubuntu|systemd-boot|ostree].
#   grub          Debian with GRUB (BIOS)
#   grub-efi      Debian with GRUB (EFI)
#   ubuntu        Ubuntu with GRUB (BIOS), which tries each boot without an initial RAM disk first, as cloud images do
#   systemd-boot  Debian with systemd-boot (EFI)
#   ostree        Debian as a deployment of OSTree, with GRUB (BIOS), and container images of two further commits
#
# The image is kept in a cache under a digest of this script, the list of
# packages, the mirror and the ssh key, so a second call only prints the path.
# Building needs root, because the files in the image belong to root.
# Nothing is mounted from the disk image and no loop device is used.
#
# These variables change what the script does:
#   MACHINIST_VM_CACHE     the cache (default: ~/.cache/machinist-vm)
#   MACHINIST_VM_PACKAGES  packages to install as well, separated by blanks
#   MACHINIST_VM_MIRROR    the mirror of Debian or Ubuntu
set -euo pipefail
umask 022

kind=${1:-grub}
suite=trixie mirror=http://deb.debian.org/debian kernel_package=linux-image-cloud-amd64
loader=grub loader_packages=grub-pc initrd_package=initramfs-tools tools= bootstrap=()
case $kind in
grub) ;;
grub-efi)
    loader_packages=grub-efi-amd64 tools=mkfs.vfat
    ;;
ubuntu)
    suite=noble mirror=http://archive.ubuntu.com/ubuntu kernel_package=linux-image-virtual
    tools="curl dpkg-deb"
    ;;
systemd-boot)
    loader=systemd-boot loader_packages="systemd-boot systemd-boot-efi" tools="mkfs.vfat mcopy mmd"
    ;;
ostree)
    loader_packages="grub-pc ostree ostree-boot skopeo docker-registry libssl3t64" initrd_package=dracut
    tools="cargo pkg-config"
    ;;
*) echo "usage: image.sh [grub|grub-efi|ubuntu|systemd-boot|ostree]" >&2; exit 64 ;;
esac
mirror=${MACHINIST_VM_MIRROR:-$mirror}
packages="$kernel_package $loader_packages systemd-sysv dbus openssh-server udev
    iproute2 $initrd_package kmod e2fsprogs ${MACHINIST_VM_PACKAGES:-}"
# Debian does not have Ubuntu's keys.
keyring=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
keyring_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
disk_mib=4096
root_partition=6d616368-696e-6973-7400-000000000001
kernel_arguments='root=LABEL=root ro console=ttyS0,115200'
memory_mib=768
finish_timeout=1200

# The source of libostree's extension for container images.
extension=$(dirname "$(realpath "$0")")/ostree-container

cache=${MACHINIST_VM_CACHE:-$HOME/.cache/machinist-vm}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
key=$cache/id_ed25519

say() { echo "image.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

for tool in ssh-keygen sha256sum flock; do
    command -v "$tool" >/dev/null || fail "$tool is missing"
done

# Only one build runs at a time. A second caller waits and then finds the image.
exec 9>"$cache/lock"
flock 9

if [ ! -e "$key" ]; then
    ssh-keygen -q -t ed25519 -N '' -C machinist-vm -f "$key"
fi

list=$(echo "$packages" | tr -s ' \n' '\n\n' | sed '/^$/d' | sort -u)
digest=$( { cat "$0" "$key.pub" "$extension"/Cargo.* "$extension"/src/*; echo "$mirror $list"; } | sha256sum | cut -c1-16)
image=$cache/$suite-$kind-$digest.qcow2

if [ -e "$image" ]; then
    echo "$image"
    exit 0
fi

[ "$(id -u)" = 0 ] || fail "the image is not built yet, and building it needs root"
for tool in mmdebstrap sgdisk mke2fs qemu-img qemu-system-x86_64 $tools; do
    command -v "$tool" >/dev/null || fail "$tool is missing"
done

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
begin=$SECONDS

# The files below go into the tree before the packages are installed, so that
# the initial ramdisk is built only once and with the right settings.
files=$work/files
mkdir "$files"
put() { # put MODE PATH: standard input becomes the file.
    mkdir -p "$files/$(dirname "$2")"
    cat >"$files/$2"
    chmod "$1" "$files/$2"
}

install -d -m 700 "$files/root" "$files/root/.ssh"
put 600 root/.ssh/authorized_keys <"$key.pub"
put 644 etc/hostname <<<vm
put 644 etc/hosts <<<'127.0.0.1 localhost vm'
[ "$kind" = ostree ] || put 644 etc/fstab <<<'LABEL=root / ext4 errors=remount-ro 0 1'
if [ "$kind" = grub-efi ]; then
    echo 'LABEL=ESP /boot/efi vfat umask=0077 0 2' >>"$files/etc/fstab"
    mkdir -p "$files/boot/efi"
fi
if [ "$loader" = systemd-boot ]; then
    echo 'LABEL=ESP /efi vfat umask=0077 0 2' >>"$files/etc/fstab"
    mkdir "$files/efi"
    # The names of entries do not depend on the identity, which each copy of the image chooses.
    put 644 etc/kernel/entry-token <<<vm
    put 644 etc/kernel/cmdline <<<"$kernel_arguments"
fi

# An emulated processor unpacks slowly, so the ramdisk holds only what is needed.
[ "$kind" = ostree ] || put 644 etc/initramfs-tools/conf.d/vm <<END
MODULES=list
COMPRESS=gzip
END
[ "$kind" = ostree ] || put 644 usr/share/initramfs-tools/modules.d/vm <<END
virtio_pci
virtio_blk
ext4
END

# The menu appears on the serial port too, so the serial log shows the choice.
put 644 etc/default/grub.d/vm.cfg <<END
GRUB_TIMEOUT=1
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="console=ttyS0,115200"
GRUB_TERMINAL="console serial"
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_DISABLE_OS_PROBER=true
END
put 644 etc/systemd/network/10-vm.network <<END
[Match]
Name=en* eth*

[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
END
# The firmware shows its console on the serial port itself.
[ "$kind" != grub-efi ] || put 644 etc/default/grub.d/vm-efi.cfg <<<GRUB_TERMINAL=console
[ "$kind" != ubuntu ] || put 644 etc/default/grub.d/40-force-partuuid.cfg <<<"GRUB_FORCE_PARTUUID=$root_partition"
mkdir -p "$files/var/log/journal"
put 644 etc/systemd/journald.conf.d/vm.conf <<END
[Journal]
Storage=persistent
END
# An emulated machine beside other work is slow.
put 644 etc/systemd/system.conf.d/vm.conf <<END
[Manager]
DefaultTimeoutStartSec=15min
DefaultTimeoutStopSec=5min
DefaultDeviceTimeoutSec=15min
END
put 644 etc/ssh/sshd_config.d/vm.conf <<END
LoginGraceTime 600
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
END

# This unit runs once, in the first boot of GRUB's image, and leaves nothing of itself behind.
[ "$loader" != grub ] || put 644 etc/systemd/system/vm-finish.service <<END
[Unit]
Description=Install GRUB and switch the machine off
SuccessAction=poweroff
FailureAction=poweroff

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/vm-finish
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
END
if [ "$kind" = ostree ]; then
    # libostree writes the menu when the arguments change.
    make_menu='ostree config --repo=/ostree/repo set sysroot.bootloader grub2
ostree config --repo=/ostree/repo set sysroot.bootprefix true
ln -s ../loader/grub.cfg /boot/grub/grub.cfg
grub-editenv /boot/grub/grubenv create
ostree admin instutil set-kargs --merge machinist.image=1'
else
    make_menu=update-grub
fi
grub_install='grub-install --target=i386-pc /dev/vda'
# The firmware of a new machine has no variables, so it starts the program for removable disks.
[ "$kind" != grub-efi ] || grub_install='grub-install --target=x86_64-efi --removable --no-nvram'
[ "$loader" != grub ] || put 755 usr/local/sbin/vm-finish <<END
#!/bin/sh
set -e
$grub_install
$make_menu
rm -f /etc/systemd/system/vm-finish.service /usr/local/sbin/vm-finish
# An empty file makes every copy of the image choose an identity of its own.
: >/etc/machine-id
rm -rf /var/log/journal/* /var/lib/systemd/random-seed
sync
echo VM-IMAGE-READY
END

if [ "$kind" = ostree ]; then
    say "building libostree's extension for container images"
    cargo build --quiet --locked --release --manifest-path "$extension/Cargo.toml" --target-dir "$cache/target" >&2
    put 755 usr/libexec/libostree/ext/ostree-container <"$cache/target/release/ostree-container"
    put 644 etc/containers/registries.conf.d/vm.conf <<END
[[registry]]
location = "localhost:5000"
insecure = true
END
fi

# Makes a repository with this system as its commit, and a deployment of it. Runs in the system that has the programs.
[ "$kind" != ostree ] || put 755 build/build-ostree <<'END'
#!/bin/sh
set -e
export OSTREE_SYSROOT_DEBUG=mutable-deployments
tree=/build/tree sysroot=/build/sysroot
version=$(ls /lib/modules)
dracut --quiet --force --gzip --no-hostonly --add ostree --add-drivers 'virtio_pci virtio_blk ext4' \
    --kver "$version" "/usr/lib/modules/$version/initramfs.img"
cp "/boot/vmlinuz-$version" "/usr/lib/modules/$version/vmlinuz"
mkdir -p "$tree" "$sysroot"
tar -C / --one-file-system --exclude=./build --exclude='./boot/*' --exclude='./proc/*' --exclude='./sys/*' \
    --exclude='./dev/*' --exclude='./run/*' --exclude='./tmp/*' -c . | tar -C "$tree" -x
cd "$tree"
mv etc usr/etc
: >usr/etc/machine-id
mkdir -p sysroot
for move in home:home root:roothome opt:opt srv:srv mnt:mnt usr/local:usrlocal; do
    from=${move%:*} to=var/${move#*:}
    mkdir -p "$to"
    [ ! -d "$from" ] || { cp -a "$from/." "$to/"; rm -rf "$from"; }
    case $from in
    */*) ln -s "../$to" "$from" ;;
    *) ln -s "$to" "$from" ;;
    esac
done
chmod 700 var/roothome
ln -s sysroot/ostree ostree
ostree admin init-fs --modern "$sysroot"
ostree admin --sysroot="$sysroot" os-init debian
ostree --repo="$sysroot/ostree/repo" commit --branch=debian/vm --add-metadata-string=version=1 "$tree"
ostree admin --sysroot="$sysroot" deploy --os=debian --karg=root=LABEL=root --karg=rw \
    --karg=console=ttyS0,115200 debian/vm
# The commit has the beginning of /var, which belongs to the machine.
cp -a "$tree/var/." "$sysroot/ostree/deploy/debian/var/"
rm -rf "$tree"
# Two images: a newer version, and one whose first process cannot run.
encapsulate() {
    ostree --repo="$sysroot/ostree/repo" commit --branch="debian/$1" --add-metadata-string="version=$2" \
        --tree=ref=debian/vm --tree="dir=/build/$1"
    ostree container encapsulate --repo="$sysroot/ostree/repo" --label=ostree.bootable=true "debian/$1" \
        "oci:$sysroot/ostree/deploy/debian/var/os-images/$1"
    ostree --repo="$sysroot/ostree/repo" refs --delete "debian/$1"
}
mkdir -p "$sysroot/ostree/deploy/debian/var/os-images" /build/two/usr/share /build/bad/usr/lib/systemd
echo 2 >/build/two/usr/share/machinist-image
: >/build/bad/usr/lib/systemd/systemd
encapsulate two 2
encapsulate bad 3
ostree --repo="$sysroot/ostree/repo" prune --refs-only
END

if [ "$kind" = ubuntu ]; then
    curl --silent --show-error --fail --output "$work/keyring.deb" "$mirror/$keyring"
    echo "$keyring_sha256 $work/keyring.deb" | sha256sum --check --quiet
    dpkg-deb -x "$work/keyring.deb" "$work/keyring"
    bootstrap=(--keyring="$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"
        --setup-hook=/usr/share/mmdebstrap/hooks/merged-usr/setup00.sh)
fi

build=()
[ "$kind" != ostree ] || build=(--customize-hook='chroot "$1" /build/build-ostree')
say "installing packages"
mmdebstrap --quiet --variant=minbase "${bootstrap[@]}" --include="$(echo "$list" | paste -sd,)" \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --essential-hook="sync-in $files /" \
    --essential-hook='echo "grub-pc grub-pc/install_devices_empty boolean true" |
        chroot "$1" debconf-set-selections' \
    --customize-hook='chroot "$1" systemctl enable systemd-networkd.service ssh.service' \
    --customize-hook='chroot "$1" systemctl mask getty@tty1.service \
        serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer' \
    "${build[@]}" "$suite" "$work/root" "$mirror" >&2
: >"$work/root/etc/machine-id"
tree=$work/root
[ "$kind" != ostree ] || tree=$work/root/build/sysroot
tree_done=$SECONDS
say "the packages took $((tree_done - begin)) s"

# The first partition holds GRUB's core image or its program for EFI, or systemd-boot with its entries and kernels; the
# second one holds the rest.
disk=$work/disk.raw
case $kind in
grub-efi) start=$((65 * 2048)) type=ef00 ;;
grub | ubuntu | ostree) start=4096 type=ef02 ;;
systemd-boot) start=$((257 * 2048)) type=ef00 ;;
esac
sectors=$((disk_mib * 2048))
truncate -s "${disk_mib}M" "$disk"
sgdisk --clear --new="1:2048:$((start - 1))" --typecode="1:$type" --change-name=1:loader \
    --new="2:$start:$((sectors - 2049))" --typecode=2:8300 --change-name=2:root \
    --partition-guid="2:$root_partition" "$disk" >/dev/null
# GRUB could not read a file system that has its checksum seed in the superblock.
mke2fs -q -F -t ext4 -L root -O ^metadata_csum_seed -d "$tree" \
    -E "offset=$((start * 512)),lazy_itable_init=0,lazy_journal_init=0,nodiscard" \
    "$disk" "$(((sectors - 2048 - start) / 2))k"
if [ "$type" = ef00 ]; then
    mkfs.vfat -F 32 -s 1 -n ESP --offset=2048 "$disk" $(((start - 2048) / 2)) >&2
fi
disk_done=$SECONDS
say "the disk took $((disk_done - tree_done)) s"

# Writes the EFI system partition, with an entry as kernel-install writes it.
install_systemd_boot() {
    local kernel version partition=$disk@@1M boot=$work/root/boot
    kernel=$(echo "$boot"/vmlinuz-*)
    version=${kernel##*/vmlinuz-}
    cat >"$work/entry.conf" <<END
title      Debian GNU/Linux 13 (trixie)
version    $version
sort-key   debian
options    $kernel_arguments
linux      /vm/$version/linux
initrd     /vm/$version/initrd.img-$version
END
    echo 'timeout 1' >"$work/loader.conf"
    mmd -i "$partition" ::EFI ::EFI/BOOT ::EFI/systemd ::loader ::loader/entries ::vm "::vm/$version"
    for place in BOOT/BOOTX64.EFI systemd/systemd-bootx64.efi; do
        mcopy -i "$partition" "$work/root/usr/lib/systemd/boot/efi/systemd-bootx64.efi" "::EFI/$place"
    done
    mcopy -i "$partition" "$work/loader.conf" ::loader/loader.conf
    mcopy -i "$partition" "$work/entry.conf" "::loader/entries/vm-$version.conf"
    mcopy -i "$partition" "$kernel" "::vm/$version/linux"
    mcopy -i "$partition" "$boot/initrd.img-$version" "::vm/$version/initrd.img-$version"
}

# The first boot takes its kernel from outside, since GRUB is not there yet.
# It may skip every flush to the disk, because a failed build is thrown away. Ubuntu's kernel crashes on the emulated
# instruction cmpxchg16b of qemu 7.2.
install_grub() {
    local serial=$work/serial.log arguments='root=LABEL=root rw' entry
    local kernel=$work/root/boot/vmlinuz-* initrd=$work/root/boot/initrd.img-*
    if [ "$kind" = ostree ]; then
        kernel=$tree/boot/ostree/*/vmlinuz-* initrd=$tree/boot/ostree/*/initramfs-*
        entry=$(sed -n 's/^options //p' "$tree"/boot/loader/entries/ostree-1*.conf)
        arguments="rw $entry"
    fi
    timeout "$finish_timeout" qemu-system-x86_64 -accel tcg,tb-size=64 -cpu qemu64,-cx16 -m "$memory_mib" -smp 1 \
        -nodefaults -no-user-config -display none -no-reboot -nic none \
        -serial "file:$serial" -device virtio-rng-pci \
        -drive "file=$disk,format=raw,if=virtio,cache=unsafe" \
        -kernel $kernel -initrd $initrd \
        -append "$arguments console=ttyS0,115200 panic=5 systemd.unit=vm-finish.service" \
        >&2 || say "qemu ended with status $?"
    if ! grep -aq VM-IMAGE-READY "$serial"; then
        tail -n 40 "$serial" >&2
        cp "$serial" "$cache/failed-serial.log"
        fail "the first boot did not finish; its log is $cache/failed-serial.log"
    fi
}

"install_${loader//-/_}"
say "the boot loader took $((SECONDS - disk_done)) s"

qemu-img convert -O qcow2 "$disk" "$work/image.qcow2"
chmod 444 "$work/image.qcow2"
sync "$work/image.qcow2"
mv "$work/image.qcow2" "$image"
say "all took $((SECONDS - begin)) s, and the image has $(($(stat -c %s "$image") >> 20)) MiB"
echo "$image"

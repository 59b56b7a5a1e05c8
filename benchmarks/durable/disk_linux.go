package durable

import (
	"fmt"
	"syscall"
)

// fileSystems are names of file systems by the type that statfs returns.
var fileSystems = map[uint32]string{
	0xEF53:     "ext4",
	0x58465342: "xfs",
	0x9123683E: "btrfs",
	0x2FC12FC1: "zfs",
	0xF2F52010: "f2fs",
	0x794C7630: "overlayfs",
	0x6969:     "nfs",
	0xFE534D42: "smb2",
	0x65735546: "fuse",
	0x01021997: "9p",
	tmpfs:      "tmpfs",
	ramfs:      "ramfs",
}

const (
	tmpfs = 0x01021994
	ramfs = 0x858458F6
)

func fileSystem(dir string) (name string, memory bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "", false, err
	}
	kind := uint32(s.Type) // its size and sign differ between platforms, the numbers have 32 bits
	name, known := fileSystems[kind]
	if !known {
		name = fmt.Sprintf("type %#x", kind)
	}
	return name, kind == tmpfs || kind == ramfs, nil
}

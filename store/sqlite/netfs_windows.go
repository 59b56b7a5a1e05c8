package sqlite

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

// networkFileSystem returns the name of the network file system that a directory is on, or "".
func networkFileSystem(dir string) string {
	volume, err := windows.UTF16PtrFromString(filepath.VolumeName(dir) + `\`)
	if err == nil && windows.GetDriveType(volume) == windows.DRIVE_REMOTE {
		return "network drive"
	}
	return ""
}

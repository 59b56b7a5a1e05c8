package main

import "io/fs"

// foreignOwner reports nothing: on Windows, access control lists decide.
func foreignOwner(fs.FileInfo) (owner int, other bool) { return 0, false }

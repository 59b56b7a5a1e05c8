package sqlite

// openFileLocks does nothing: locks belong to the open file on Windows.
func openFileLocks() (late bool) { return false }

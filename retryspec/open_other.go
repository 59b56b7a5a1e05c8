//go:build !unix

package retryspec

// nonblocking is for systems on which a path can name a pipe.
const nonblocking = 0

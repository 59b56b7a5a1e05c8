// Package storekit is a toolkit for stores. It has the queue of batches between Submit and the commits, the functions
// of Watch, and the encoding of records for columns. A store need not use it.
package storekit

//go:build !unix

// Command replicas needs a Unix system, for the server that it starts.
package main

import "fmt"

func main() { fmt.Println("SKIP: the program starts a server as only a Unix system can") }

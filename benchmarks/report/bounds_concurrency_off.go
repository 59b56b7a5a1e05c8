//go:build !concurrency

package main

func concurrencyBounds() []bound { return nil }

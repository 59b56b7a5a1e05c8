//go:build !concurrency

package plan

var concurrencyWorkloads []Workload

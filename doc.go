// Package eventbus is an in-process event bus for monoliths in which no accepted
// event is lost.
package eventbus

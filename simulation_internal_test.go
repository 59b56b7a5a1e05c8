package eventbus

// SetRandom replaces what the bus draws its jitter from, for tests in package
// eventbus_test. It must be called before Start.
func SetRandom(b *Bus, random func() float64) { b.random = random }

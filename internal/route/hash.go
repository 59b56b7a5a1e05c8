package route

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// seed makes hashes unpredictable, so an attacker cannot choose types that collide.
var seed = maphash.MakeSeed()

var hashStart, hashFactor = maphash.String(seed, "start"), maphash.String(seed, "factor") | 1

// hashOf returns the hash of a text in a byText.
func hashOf(text string) uint64 { return hashSegment(text, short(text)) }

// hashSegment is hashOf for the results of cutSegment.
func hashSegment(text string, packed uint64) uint64 {
	if len(text) > shortText {
		return maphash.String(seed, text)
	}
	// Each step is reversible, so different texts have different hashes. A product spreads the bits
	// upwards only, so the high bits are also mixed into the low ones: callers use both ends.
	h := (packed ^ hashStart) * hashFactor
	h = (h ^ h>>32) * hashFactor
	return h ^ h>>32
}

// name identifies a type in the cache, together with its length. It has four fields, so
// that the compiler keeps it in registers.
type name struct{ first, second, third, last uint64 }

// Types of a usual length are the same if their names and lengths are, as shorter ones are;
// longer ones may not be.
const minUsual, maxUsual = 8, 32

func usual(typ string) bool { return len(typ) >= minUsual && len(typ) <= maxUsual }

// usualName and hash are small enough to be inlined, and have no branch: how long types are
// is hard to foretell.
func usualName(typ string) name {
	// Two words from the front and two from the end, which overlap; up to 16 bytes twice the
	// same one.
	apart := (len(typ) - 1) & 16 / 2
	third, last := len(typ)-8-apart, len(typ)-8
	text, from := []byte(typ), binary.LittleEndian
	return name{
		from.Uint64(text),
		from.Uint64(text[apart : apart+8 : apart+8]),
		from.Uint64(text[third : third+8 : third+8]),
		from.Uint64(text[last:]),
	}
}

func nameOf(typ string) (n name) {
	switch {
	case usual(typ):
		return usualName(typ)
	case len(typ) < minUsual:
		return name{first: short(typ)} // bytes that are 0 count, as the length is compared too
	}
	n.first, n.last = word(typ, 0), word(typ, len(typ)-8)
	for i := 8; i < len(typ)-8; i += 8 {
		n.second = mix(n.second^word(typ, i), hashFactor)
	}
	return n
}

// hash returns the hash of a type for the cache and the doorkeeper. It is faster than hashOf. Types
// that collide evict each other there, and do no other harm. An attacker would need the seed to
// choose them.
func (n name) hash(length int) uint64 {
	h := mix(n.first^hashStart, n.second^uint64(length)*hashFactor)
	// Once more, as what chooses the place in the cache are few bits, into which few of one
	// product come: the lowest, where the upper half is put, which depends on most.
	return bits.RotateLeft64((h^mix(n.third^hashFactor, n.last^hashStart))*hashFactor, 32)
}

// mix multiplies, and combines the high and the low half, so that each bit of the result
// depends on every bit of both factors.
func mix(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}

// Package uuid7 makes, formats and parses UUIDs of version 7 (RFC 9562).
package uuid7

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
)

// Source makes UUIDs of version 7 without a system call for each. A UUID consists of
//
//   - the time in milliseconds: 48 bits,
//   - a counter that starts at a random value, so that UUIDs of the same millisecond are
//     ordered: 42 bits,
//   - bits that differ between processes: 32 bits.
//
// Make one with NewSource. Its methods are safe for concurrent use.
type Source struct {
	millis  atomic.Int64
	counter atomic.Uint64
	secret  uint64
}

// NewSource makes a source with a random counter and secret.
func NewSource() *Source {
	var seed [16]byte
	rand.Read(seed[:]) // never fails: crypto/rand ends the program instead
	s := &Source{secret: binary.LittleEndian.Uint64(seed[8:])}
	// The counter's highest bit starts clear, so that 2^41 UUIDs pass before it wraps.
	s.counter.Store(binary.LittleEndian.Uint64(seed[:]) >> (64 - 41))
	return s
}

// Next returns the next UUID. millis is the time in milliseconds since 1970. UUIDs are
// ordered even if millis goes back: the source then uses the largest it has seen.
func (s *Source) Next(millis int64) (id [16]byte) {
	s.Put(&id, millis)
	return id
}

// Put writes the next UUID to *id. It is Next without a copy: Put writes two halves, and
// a copy of the whole right after that stalls until both are stored.
func (s *Source) Put(id *[16]byte, millis int64) {
	for {
		last := s.millis.Load()
		if millis <= last {
			millis = last
			break
		}
		if s.millis.CompareAndSwap(last, millis) {
			break
		}
	}
	n := s.counter.Add(1)
	// The finalizer of MurmurHash3, so that the last bits of neighbours are unrelated.
	mix := n ^ s.secret
	mix = (mix ^ mix>>33) * 0xff51afd7ed558ccd
	mix = (mix ^ mix>>33) * 0xc4ceb9fe1a85ec53
	mix ^= mix >> 33
	binary.BigEndian.PutUint64(id[:8], uint64(millis)<<16|0x7000|n>>30&0x0fff)
	binary.BigEndian.PutUint64(id[8:], 0x8000000000000000|n&0x3fffffff<<32|mix&0xffffffff)
}

// Count returns a number that grows by one with each UUID. It starts at a random value.
func (s *Source) Count() uint64 { return s.counter.Load() }

// Format returns the usual form of a UUID, in lower case.
func Format(id [16]byte) string {
	var b [36]byte
	hex.Encode(b[:8], id[:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// Parse reads the usual form of a UUID: 36 characters, in either case, of any version.
func Parse(s string) (id [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	if _, err := hex.Decode(id[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return [16]byte{}, false
	}
	return id, true
}

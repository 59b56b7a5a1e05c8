package admin

import (
	"container/heap"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits of failed logins.
const (
	freeFailures  = 5
	failureRefill = time.Second // until a further attempt is accepted
	maxPeers      = 1 << 16     // that are counted; more than a server refuses in failureRefill
	maxPeerName   = 64          // bytes
)

// peerOf returns the name under which the failures of an address are counted. A network gets at least a /64 of IPv6,
// so that one client has all addresses of it.
func peerOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = strings.Trim(remote, "[]")
	}
	addr, err := netip.ParseAddr(host)
	if err != nil { // set by a handler in front, or not of an IP network
		return strings.Clone(host[:min(len(host), maxPeerName)]) // without the memory of a long header
	}
	const network = 64
	if addr = addr.Unmap(); addr.Is6() {
		return netip.PrefixFrom(addr.WithZone(""), network).Masked().String()
	}
	return addr.String()
}

// limiter counts the failed logins of each peer. The zero value is ready.
//
// It counts no peers together, and refuses no peer that it does not count: clients that guess would lock out the
// operators. When it is full, it forgets the peer whose count ends first. To reset its own count, a client needs
// failures of maxPeers other peers whose counts end later.
type limiter struct {
	mu    sync.Mutex // guards the following; a leaf
	peers map[string]*peer
	ends  peerHeap // of peers
}

// peer is a peer that has failed.
type peer struct {
	name  string
	until time.Time // when it has no failure left that counts
	at    int       // in the heap
}

// attempt calls check, which reports whether a peer's credentials are valid, or returns how long the peer must wait. The
// lock is held during check, so that concurrent guesses are counted one by one.
func (l *limiter) attempt(name string, check func() bool) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	p := l.peers[name]
	if p != nil {
		if wait := p.until.Add(-(freeFailures - 1) * failureRefill).Sub(now); wait > 0 {
			return wait
		}
	}
	if !check() {
		l.failedLocked(p, name, now)
	}
	return 0
}

// failedLocked counts a failure of a peer, which is nil if it is not counted yet.
func (l *limiter) failedLocked(p *peer, name string, now time.Time) {
	if p == nil {
		for len(l.ends) > 0 && (len(l.ends) == maxPeers || l.ends[0].until.Before(now)) {
			delete(l.peers, heap.Pop(&l.ends).(*peer).name)
		}
		if l.peers == nil {
			l.peers = make(map[string]*peer)
		}
		p = &peer{name: name, until: now}
		l.peers[name] = p
		heap.Push(&l.ends, p)
	}
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(failureRefill)
	heap.Fix(&l.ends, p.at)
}

// peerHeap is a heap.Interface: the peer that is forgotten first is the first.
type peerHeap []*peer

func (h peerHeap) Len() int           { return len(h) }
func (h peerHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }

func (h peerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push adds a *peer.
func (h *peerHeap) Push(x any) {
	p := x.(*peer)
	p.at = len(*h)
	*h = append(*h, p)
}

// Pop removes the last peer.
func (h *peerHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

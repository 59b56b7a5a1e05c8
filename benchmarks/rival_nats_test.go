package benchmarks

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// openNATS is a server in this process, without a port, and a connection to it
// through memory. To be waited for, subscribers reply.
func openNATS(_ testing.TB, s setup) system {
	srv, err := server.NewServer(&server.Options{DontListen: true, NoLog: true, NoSigs: true})
	check(err)
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		panic("the NATS server is not ready")
	}
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	check(err)
	for _, sub := range s.subscriptions {
		_, err := conn.Subscribe(sub.glob(), func(m *nats.Msg) {
			check(sub.handle(numberIn(m.Data)))
			if s.wait {
				check(m.Respond(nil))
			}
		})
		check(err)
	}
	check(conn.Flush())
	return system{
		publisher: func(topic string) func(*note) {
			if !s.wait {
				return func(x *note) { check(conn.Publish(topic, x.bytes[:])) }
			}
			inbox := nats.NewInbox()
			replies, err := conn.SubscribeSync(inbox)
			check(err)
			subscribers := len(s.handlers(topic))
			return func(x *note) {
				check(conn.PublishRequest(topic, inbox, x.bytes[:]))
				for range subscribers {
					_, err := replies.NextMsg(10 * time.Second)
					check(err)
				}
			}
		},
		unbounded: true,
		close: func() {
			conn.Close()
			srv.Shutdown()
			srv.WaitForShutdown()
		},
	}
}

package proxy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProxy_ForwardsLater(t *testing.T) {
	const delay = 2 * time.Millisecond
	server, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // there is nothing to wait for
	require.NoError(t, err)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn) // until the client ends
			_ = conn.Close()
		}
	}()
	p, err := Start("tcp", server.Addr().String(), delay)
	require.NoError(t, err)
	conn, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p.Port()})
	require.NoError(t, err)
	for range 3 {
		begin := time.Now()
		_, err = conn.Write([]byte("ping"))
		require.NoError(t, err)
		answer := make([]byte, 4)
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err)
		require.Equal(t, "ping", string(answer))
		require.GreaterOrEqual(t, time.Since(begin), 2*delay)
	}
	require.NoError(t, conn.CloseWrite())
	rest, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.NoError(t, server.Close())
	require.NoError(t, p.Close())
}

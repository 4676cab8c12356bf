package supervise

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"
)

// forward serves a TCP forwarder until ctx ends.
func forward(ctx context.Context, f Forward) {
	for ctx.Err() == nil {
		if err := serve(ctx, f); err != nil {
			log.Printf("forward %s to %s: %v", f.Listen, f.To, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(firstPause):
		}
	}
}

func serve(ctx context.Context, f Forward) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		wg.Go(func() { join(ctx, conn.(*net.TCPConn), f.To) })
	}
}

// join copies both ways between a connection and a new one to the target.
func join(ctx context.Context, a *net.TCPConn, to string) {
	defer a.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	b := conn.(*net.TCPConn)
	defer b.Close()
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { pump(a, b) })
	wg.Go(func() { pump(b, a) })
	wg.Wait()
}

// pump copies from one side to the other; an error on either ends this direction, which the other side then notices.
func pump(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		from.Close()
	}
	_ = to.CloseWrite() // closed already, if it fails
}

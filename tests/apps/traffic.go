// Checksummed traffic between two processes, as traffic.c: `traffic serve|ask PORT CONNECTIONS`.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
)

func serve(port, connections int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	done := make(chan error)
	for number := 0; number < connections; number++ {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			buffer := make([]byte, 1<<16)
			_, err := io.CopyBuffer(struct{ io.Writer }{connection}, struct{ io.Reader }{connection}, buffer)
			done <- err
		}()
	}
	for number := 0; number < connections; number++ {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

func ask(port, seed int) error {
	random := rand.New(rand.NewSource(int64(seed)))
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer connection.Close()
	for block := 0; block < 300; block++ {
		most := 200
		if block%8 == 0 {
			most = 70000
		}
		sent := make([]byte, 1+random.Intn(most))
		got := make([]byte, len(sent))
		random.Read(sent)
		if _, err := connection.Write(sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(connection, got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("other bytes came back")
		}
	}
	return connection.(*net.TCPConn).CloseWrite()
}

func main() {
	port, _ := strconv.Atoi(os.Args[2])
	connections, _ := strconv.Atoi(os.Args[3])
	var err error
	if os.Args[1] == "serve" {
		err = serve(port, connections)
	} else {
		results := make(chan error)
		for number := 0; number < connections; number++ {
			go func(seed int) { results <- ask(port, seed) }(number)
		}
		for number := 0; number < connections; number++ {
			if result := <-results; result != nil {
				err = result
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

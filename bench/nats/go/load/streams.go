package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	requestTimeout = 30 * time.Second
	readLimit      = 300 * time.Second
	// dueHeader is the requested due time in ms since 1970. The server removes its own header with that time.
	dueHeader = "Due-Ms"
)

var (
	connectionsGuard sync.Mutex
	connections      = map[string]jetstream.JetStream{}
)

// connected returns the connection to a server, which all commands share.
func connected(given options) (jetstream.JetStream, error) {
	address := given.text("namesrv", "")
	connectionsGuard.Lock()
	defer connectionsGuard.Unlock()
	if known, found := connections[address]; found {
		return known, nil
	}
	connection, err := nats.Connect("nats://"+address, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.Timeout(requestTimeout))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, err
	}
	connections[address] = js
	return js, nil
}

func forget(given options) (reply, error) {
	connectionsGuard.Lock()
	defer connectionsGuard.Unlock()
	address := given.text("namesrv", "")
	if js, found := connections[address]; found {
		js.Conn().Close()
		delete(connections, address)
	}
	return reply{"forgotten": true}, nil
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), requestTimeout)
}

// makeStream creates the stream of a topic unless it exists: one replica in files, synced at the server's
// sync_interval.
func makeStream(js jetstream.JetStream, topic string, withSchedules bool) error {
	ctx, cancel := limited()
	defer cancel()
	config := jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage, Replicas: 1}
	if withSchedules {
		config.Subjects = append(config.Subjects, topic+".at.*")
		config.AllowMsgSchedules = true
	}
	stream, err := js.CreateStream(ctx, config)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		stream, err = js.Stream(ctx, topic)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", topic, err)
	}
	if withSchedules && !stream.CachedInfo().Config.AllowMsgSchedules {
		return fmt.Errorf("stream %s was created without scheduled messages", topic)
	}
	return nil
}

// held returns the number of messages of the topic's own subject, without pending scheduled ones.
func held(given options) (reply, error) {
	js, err := connected(given)
	if err != nil {
		return nil, err
	}
	count, err := stored(js, given.text("topic", ""))
	if err != nil {
		return nil, err
	}
	return reply{"messages": count}, nil
}

func stored(js jetstream.JetStream, topic string) (uint64, error) {
	ctx, cancel := limited()
	defer cancel()
	stream, err := js.Stream(ctx, topic)
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(topic))
	if err != nil {
		return 0, err
	}
	return info.State.Subjects[topic], nil
}

// delivered writes a line with the requested due time and the store time, both in ms since 1970, for each delivered
// copy of a scheduled message to `out`.
func delivered(given options) (reply, error) {
	js, err := connected(given)
	if err != nil {
		return nil, err
	}
	topic := given.text("topic", "")
	count, err := stored(js, topic)
	if err != nil {
		return nil, err
	}
	file, err := os.Create(given.text("out", ""))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewWriter(file)
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{topic}, HeadersOnly: true}
	consumer, err := js.OrderedConsumer(ctx, topic, config)
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for number := range count {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("%d of %d copies of %s: %w", number, count, topic, err)
		}
		about, err := message.Metadata()
		if err != nil {
			return nil, err
		}
		due := message.Headers().Get(dueHeader)
		if _, err := fmt.Fprintf(lines, "%s %.3f\n", due, float64(about.Timestamp.UnixMicro())/1000); err != nil {
			return nil, err
		}
	}
	return reply{"count": count}, lines.Flush()
}

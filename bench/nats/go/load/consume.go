package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackEvery is the number of messages that an acknowledgement covers in the mode all, that of a pull of RocketMQ.
	ackEvery = 32
	// pullMessages is the client's default.
	pullMessages = 500
	latencyBytes = 24
)

var policies = map[string]jetstream.AckPolicy{"all": jetstream.AckAllPolicy, "each": jetstream.AckExplicitPolicy}

// consume reads `count` messages with a new durable pull consumer, timed from the first to the last of them.
//
// acks=all|each: acknowledge every 32nd message with all earlier ones, or each message.
func consume(given options) (reply, error) {
	count, acks := given.number("count", 1), given.text("acks", "all")
	policy, known := policies[acks]
	if !known {
		return nil, fmt.Errorf("acks=%s: use all or each", acks)
	}
	var received atomic.Int64
	var first, last time.Time
	done := make(chan struct{})
	stop, err := subscribe(given, policy, func(message jetstream.Msg) {
		number := received.Add(1)
		if number == 1 {
			first = time.Now()
		}
		if acks == "each" || number%ackEvery == 0 || number == count {
			_ = message.Ack()
		}
		if number == count {
			last = time.Now()
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	select {
	case <-done:
	case <-time.After(time.Duration(given.decimal("at_most_seconds", 120) * float64(time.Second))):
		return nil, fmt.Errorf("received %d of %d in time", received.Load(), count)
	}
	elapsed := max(last.Sub(first), time.Microsecond).Seconds()
	return reply{"received": received.Load(), "elapsed_s": elapsed, "rate": float64(count) / elapsed}, nil
}

// subscribe starts a new durable consumer of a topic; handle is called for one message at a time.
func subscribe(given options, policy jetstream.AckPolicy, handle jetstream.MessageHandler) (func(), error) {
	js, err := connected(given)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited()
	defer cancel()
	config := jetstream.ConsumerConfig{Durable: given.text("group", ""), AckPolicy: policy, MaxAckPending: -1}
	consumer, err := js.CreateConsumer(ctx, given.text("topic", ""), config)
	if err != nil {
		return nil, err
	}
	consuming, err := consumer.Consume(handle, jetstream.PullMaxMessages(pullMessages))
	if err != nil {
		return nil, err
	}
	return func() {
		consuming.Stop()
		<-consuming.Closed()
	}, nil
}

// latency sends `count` messages at `rate` per second, and measures the time until this process's consumer has each.
func latency(given options) (reply, error) {
	js, err := connected(given)
	if err != nil {
		return nil, err
	}
	topic, count := given.text("topic", ""), given.number("count", 1000)
	skipped, rate := given.number("skip", count/10), given.decimal("rate", 500)
	body := make([]byte, max(latencyBytes, given.number("size", 100)))
	began := time.Now()
	run := uint64(began.UnixNano())
	var guard sync.Mutex
	var durations []time.Duration
	received := int64(0)
	done := make(chan struct{})
	stop, err := subscribe(given, jetstream.AckAllPolicy, func(message jetstream.Msg) {
		now := time.Since(began)
		data := message.Data()
		if len(data) < latencyBytes || binary.BigEndian.Uint64(data) != run {
			return // from an earlier run
		}
		_ = message.Ack()
		guard.Lock()
		defer guard.Unlock()
		if int64(binary.BigEndian.Uint64(data[16:])) >= skipped {
			durations = append(durations, now-time.Duration(binary.BigEndian.Uint64(data[8:])))
		}
		if received++; received == count {
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	time.Sleep(time.Second) // as for RocketMQ's consumer
	start := time.Now()
	for number := range count {
		time.Sleep(time.Until(start.Add(time.Duration(float64(number) * float64(time.Second) / rate))))
		binary.BigEndian.PutUint64(body, run)
		binary.BigEndian.PutUint64(body[8:], uint64(time.Since(began)))
		binary.BigEndian.PutUint64(body[16:], uint64(number))
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		_, err := js.Publish(ctx, topic, body)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	select {
	case <-done:
	case <-time.After(requestTimeout):
		guard.Lock()
		defer guard.Unlock()
		return nil, fmt.Errorf("received %d of %d in time", received, count)
	}
	guard.Lock()
	defer guard.Unlock()
	slices.Sort(durations)
	return reply{"received": received, "p50_us": micros(durations, 50), "p99_us": micros(durations, 99)}, nil
}

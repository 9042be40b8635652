package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	maxErrors         = 8
	pauseAfterFailure = 20 * time.Millisecond
	scheduleFormat    = "2006-01-02T15:04:05.000Z"
)

// sending is a run of sends for `seconds`, or until `count` messages are acknowledged.
//
// mode=sync|async|batch, threads (goroutines), size (bytes of the body), batch (messages that are published before
// their acknowledgements are awaited), window (unacknowledged messages of all goroutines in the mode async), rate
// (messages per second of all goroutines; 0: unlimited), delays_ms (messages are due between these two delays after
// they are made), deliver_ms (due time of the first message in ms since 1970) and step_ms (later by this for each
// further one), timeout_ms (of an acknowledgement).
//
// p50_us and p99_us are durations of synchronous sends, failed ones included; with a rate, from the time at which a
// send was due.
type sending struct {
	js            jetstream.JetStream
	mode, topic   string
	body          []byte
	threads       int
	batch         int64
	perThread     int
	rate          float64
	delays        []int64
	deliver, step int64
	timeout       time.Duration
	count         int64
	start         time.Time
	deadline      time.Time
	made          atomic.Int64
	claimed       atomic.Int64
	acknowledged  atomic.Int64
	failed        atomic.Int64
	guard         sync.Mutex
	errors        map[string]int
	durations     []time.Duration
}

var (
	// scheduled numbers the subjects of scheduled messages: a subject has one schedule, and a later one replaces it.
	scheduled atomic.Int64
	stopped   atomic.Int64
)

// stop stops every running send: outstanding requests are completed, and no further ones are sent.
func stop(options) (reply, error) {
	stopped.Store(time.Now().UnixNano())
	return reply{"stopped": true}, nil
}

func send(given options) (reply, error) {
	s, err := newSending(given)
	if err != nil {
		return nil, err
	}
	if err := makeStream(s.js, s.topic, s.isScheduled()); err != nil {
		return nil, err
	}
	s.start = time.Now()
	limit := given.decimal("at_most_seconds", 600)
	if seconds := given.decimal("seconds", 0); seconds > 0 {
		limit = seconds
	}
	s.deadline = s.start.Add(time.Duration(limit * float64(time.Second)))
	var workers sync.WaitGroup
	for range s.threads {
		workers.Go(s.work)
	}
	workers.Wait()
	elapsed := time.Since(s.start).Seconds()
	slices.Sort(s.durations)
	return reply{
		"acknowledged": s.acknowledged.Load(), "failed": s.failed.Load(), "elapsed_s": elapsed,
		"rate": float64(s.acknowledged.Load()) / elapsed, "p50_us": micros(s.durations, 50),
		"p99_us": micros(s.durations, 99), "errors": s.errors,
	}, nil
}

func newSending(given options) (*sending, error) {
	js, err := connected(given)
	if err != nil {
		return nil, err
	}
	s := &sending{
		js: js, mode: given.text("mode", "sync"), topic: given.text("topic", ""),
		body:    make([]byte, given.number("size", 100)),
		threads: int(given.number("threads", 1)), batch: 1, rate: given.decimal("rate", 0),
		deliver: given.number("deliver_ms", 0), step: given.number("step_ms", 0),
		timeout: time.Duration(given.number("timeout_ms", 3000)) * time.Millisecond,
		count:   given.number("count", math.MaxInt64), errors: map[string]int{},
	}
	_, _ = rand.Read(s.body)
	if s.mode == "batch" {
		s.batch = given.number("batch", 32)
	}
	s.perThread = max(1, int(given.number("window", 512))/s.threads)
	if delays := given.text("delays_ms", ""); delays != "" {
		for _, word := range strings.Split(delays, ",") {
			delay, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("delays_ms=%s: %w", delays, err)
			}
			s.delays = append(s.delays, delay)
		}
		if len(s.delays) != 2 || s.delays[0] > s.delays[1] {
			return nil, errors.New("delays_ms needs the shortest and the longest delay")
		}
	}
	if given.decimal("seconds", 0) <= 0 && s.count == math.MaxInt64 {
		return nil, errors.New("send needs seconds or count")
	}
	return s, given.err()
}

func (s *sending) isScheduled() bool { return len(s.delays) > 0 || s.deliver > 0 }

func (s *sending) work() {
	switch s.mode {
	case "async":
		s.workAsync()
	case "batch":
		for _, ok := s.claim(); ok; _, ok = s.claim() {
			s.publishBatch()
		}
	default:
		s.workSync()
	}
}

func (s *sending) workSync() {
	var own []time.Duration
	for due, ok := s.claim(); ok; due, ok = s.claim() {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		_, err := s.js.PublishMsg(ctx, s.message())
		cancel()
		own = append(own, time.Since(due))
		s.settle(err)
		if err != nil {
			time.Sleep(pauseAfterFailure)
		}
	}
	s.guard.Lock()
	defer s.guard.Unlock()
	s.durations = append(s.durations, own...)
}

// workAsync publishes without waiting while fewer than perThread messages are unacknowledged. Acknowledgements of a
// stream arrive in order, so the oldest one is awaited.
func (s *sending) workAsync() {
	window := make(chan jetstream.PubAckFuture, s.perThread)
	var reader sync.WaitGroup
	reader.Go(func() {
		for future := range window {
			s.settle(s.await(future))
		}
	})
	for _, ok := s.claim(); ok; _, ok = s.claim() {
		future, err := s.js.PublishMsgAsync(s.message())
		if err != nil {
			s.settle(err)
			time.Sleep(pauseAfterFailure)
			continue
		}
		window <- future
	}
	close(window)
	reader.Wait()
}

func (s *sending) publishBatch() {
	futures := make([]jetstream.PubAckFuture, 0, s.batch)
	for range s.batch {
		future, err := s.js.PublishMsgAsync(s.message())
		if err != nil {
			s.settle(err)
			continue
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		s.settle(s.await(future))
	}
}

func (s *sending) await(future jetstream.PubAckFuture) error {
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	default:
	}
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	case <-limit.C:
		return errors.New("no acknowledgement in time")
	}
}

// claim returns the time from which the caller's next send counts: now or, if a rate is set, the time at which it was
// due, after waiting for it. It returns false if the caller must not send.
func (s *sending) claim() (time.Time, bool) {
	ticket := s.claimed.Add(s.batch) - s.batch
	for ticket >= s.count {
		// Failed sends return their ticket, so wait until no ticket can be returned.
		s.claimed.Add(-s.batch)
		if s.acknowledged.Load() >= s.count || !s.isOpen() {
			return time.Time{}, false
		}
		time.Sleep(time.Millisecond)
		ticket = s.claimed.Add(s.batch) - s.batch
	}
	due := time.Now()
	if s.rate > 0 {
		due = s.start.Add(time.Duration(float64(ticket) * float64(time.Second) / s.rate))
		time.Sleep(time.Until(due))
	}
	return due, s.isOpen()
}

func (s *sending) isOpen() bool {
	return time.Now().Before(s.deadline) && s.start.UnixNano() > stopped.Load()
}

func (s *sending) message() *nats.Msg {
	message := nats.NewMsg(s.topic)
	message.Data = s.body
	number := s.made.Add(1) - 1
	due := s.deliver + number*s.step
	if len(s.delays) > 0 {
		due = time.Now().UnixMilli() + s.delays[0] + mathrand.Int64N(s.delays[1]-s.delays[0]+1)
	}
	if s.isScheduled() {
		// The client's own option for due times rounds them down to seconds.
		message.Subject = s.topic + ".at." + strconv.FormatInt(scheduled.Add(1), 10)
		message.Header.Set("Nats-Schedule", "@at "+time.UnixMilli(due).UTC().Format(scheduleFormat))
		message.Header.Set("Nats-Schedule-Target", s.topic)
		message.Header.Set(dueHeader, strconv.FormatInt(due, 10))
	}
	return message
}

func (s *sending) settle(err error) {
	if err == nil {
		s.acknowledged.Add(1)
		return
	}
	s.failed.Add(1)
	if s.count != math.MaxInt64 {
		s.claimed.Add(-1)
	}
	s.guard.Lock()
	defer s.guard.Unlock()
	text := err.Error()
	if _, known := s.errors[text]; !known && len(s.errors) >= maxErrors {
		text = "other"
	}
	s.errors[text]++
}

// firstSend publishes until a message is acknowledged: the duration of a server's start as seen by a producer.
func firstSend(given options) (reply, error) {
	timeout := time.Duration(given.number("timeout_ms", 1000)) * time.Millisecond
	deadline := time.Now().Add(time.Duration(given.decimal("at_most_seconds", 120) * float64(time.Second)))
	topic, last := given.text("topic", ""), errors.New("no attempt")
	for time.Now().Before(deadline) {
		js, err := connected(given)
		if err == nil {
			err = makeStream(js, topic, false)
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			_, err = js.Publish(ctx, topic, make([]byte, 100))
			cancel()
		}
		if err == nil {
			return reply{"acknowledged_ms": time.Now().UnixMilli()}, nil
		}
		last = err
		time.Sleep(3 * time.Millisecond)
	}
	return nil, fmt.Errorf("no send was acknowledged in time; last: %w", last)
}

// micros returns a percentile of sorted durations in microseconds, 0 without values.
func micros(sorted []time.Duration, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[(len(sorted)-1)*percent/100].Nanoseconds()) / 1000
}

// Command load sends to NATS JetStream and receives from it, driven by lines on its standard input, as the load
// program in bench/java does with RocketMQ's client.
//
// Input: `id command name=value …`; output: one JSON object a line, {"id":…,"ok":true,"result":{…}} or
// {"id":…,"ok":false,"error":…}. Each command runs in a separate goroutine. The program exits at the end of its
// input. The option namesrv is the address of the server. A topic T is a stream T, which stores the subject T and, if
// it has scheduled messages, the subjects T.at.*.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

const maxLineBytes = 1 << 16

type reply map[string]any

var commands = map[string]func(options) (reply, error){
	"send":       send,
	"first-send": firstSend,
	"consume":    consume,
	"latency":    latency,
	"held":       held,
	"delivered":  delivered,
	"stop":       stop,
	"forget":     forget,
}

func main() {
	var output sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, maxLineBytes)
	for input.Scan() {
		words := strings.Fields(input.Text())
		if len(words) < 2 {
			continue
		}
		go func() {
			answer := run(words[0], words[1], parse(words[2:]))
			output.Lock()
			defer output.Unlock()
			if err := encoder.Encode(answer); err != nil {
				fmt.Fprintln(os.Stderr, "cannot reply:", err)
			}
		}()
	}
}

func run(id, command string, given options) reply {
	function, known := commands[command]
	if !known {
		return reply{"id": id, "ok": false, "error": "unknown command: " + command}
	}
	result, err := function(given)
	if err == nil {
		err = given.err()
	}
	if err != nil {
		return reply{"id": id, "ok": false, "error": err.Error()}
	}
	return reply{"id": id, "ok": true, "result": result}
}

// options are the options of a command. An invalid number is reported by err.
type options struct {
	values  map[string]string
	problem *error
}

func parse(words []string) options {
	values := make(map[string]string, len(words))
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		values[name] = value
	}
	return options{values, new(error)}
}

func (o options) err() error { return *o.problem }

func (o options) text(name, otherwise string) string {
	if value, given := o.values[name]; given {
		return value
	}
	return otherwise
}

func (o options) decimal(name string, otherwise float64) float64 {
	value, given := o.values[name]
	if !given {
		return otherwise
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		*o.problem = fmt.Errorf("%s=%s is not a number", name, value)
	}
	return number
}

func (o options) number(name string, otherwise int64) int64 {
	value, given := o.values[name]
	if !given {
		return otherwise
	}
	number, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		*o.problem = fmt.Errorf("%s=%s is not a whole number", name, value)
	}
	return number
}

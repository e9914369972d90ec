// Driver NAMESRV: many Go clients in one process, told what to do by JSON lines on the standard input, as those of
// ../java/Driver.java. Each line has "do" (see run) and "id"; what happens is told in JSON lines with that id under
// "for". It ends when its input does.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// todo is one line; what is not named is zero.
type todo struct {
	Do, ID, Topic, Group, Tags, Key, SQL   string
	Bodies, Fail                           []string
	Batch, Oneway, Ordered, Broadcasting   bool
	Answer                                 bool
	Delay, Size, Threads, Most, Count, New int
	Offset                                 int64
	Properties, Decisions, Checks          map[string]string
}

type row map[string]any

var (
	namesrv string
	out     sync.Mutex
	closers sync.Map // by id: func()
)

func main() {
	namesrv = os.Args[1]
	rlog.SetLogLevel("error")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var given todo
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			panic(err)
		}
		go func() {
			if err := run(given); err != nil {
				given.tell(row{"error": err.Error()})
			}
		}()
	}
}

func run(given todo) error {
	switch given.Do {
	case "send":
		return send(given)
	case "transact":
		return transact(given)
	case "ask":
		return ask(given)
	case "pour":
		return pour(given)
	case "gather":
		return gather(given)
	case "consume":
		return consume(given)
	case "lite":
		return lite(given)
	case "stop":
		if closer, found := closers.LoadAndDelete(given.ID); found {
			closer.(func())()
		}
		given.tell(row{"stopped": true})
		return nil
	}
	return fmt.Errorf("do %q?", given.Do)
}

func (given todo) tell(what row) {
	what["for"] = given.ID
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func (given todo) tellMessage(message *primitive.MessageExt) {
	given.tell(row{"body": text(message.Body), "size": len(message.Body), "topic": message.Topic,
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "times": message.ReconsumeTimes,
		"id": message.MsgId, "at": time.Now().UnixMilli(), "properties": message.GetProperties()})
}

func (given todo) tellAll(key string, bodies []string) {
	for at := 0; at < len(bodies); at += 2000 {
		given.tell(row{key: bodies[at:min(at+2000, len(bodies))]})
	}
}

// running says whether nobody has stopped this.
func (given todo) running() bool {
	_, found := closers.Load(given.ID)
	return found
}

// instance is a name of this client's own, so that it shares no connection and no route with another one.
func (given todo) instance() string {
	return "driver-" + given.ID + "-" + strconv.Itoa(os.Getpid())
}

func text(body []byte) string { return strings.TrimSpace(string(body)) }

func (given todo) message(body string) *primitive.Message {
	message := primitive.NewMessage(given.Topic, []byte(fmt.Sprintf("%-*s", given.Size, body)))
	if given.Tags != "" {
		message.WithTag(given.Tags)
	}
	message.WithKeys([]string{body})
	if given.Key != "" {
		message.WithShardingKey(given.Key)
	}
	if given.Delay > 0 {
		message.WithDelayTimeLevel(given.Delay)
	}
	for name, value := range given.Properties {
		message.WithProperty(name, value)
	}
	return message
}

func servers() primitive.NamesrvAddr { return primitive.NamesrvAddr{namesrv} }

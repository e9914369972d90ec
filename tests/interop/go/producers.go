package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func (given todo) options(name string, more ...producer.Option) []producer.Option {
	return append([]producer.Option{producer.WithNameServer(servers()), producer.WithGroupName("driver-" + given.ID),
		producer.WithInstanceName(name), producer.WithSendMsgTimeout(10 * time.Second)}, more...)
}

func (given todo) producer(name string, more ...producer.Option) (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(given.options(name, more...)...)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

// send: "bodies" to "topic"; "key" orders them, "batch" sends them in one request, "oneway" waits for no answer,
// "delay" is a level.
func send(given todo) error {
	selector := producer.NewRoundRobinQueueSelector()
	if given.Key != "" {
		selector = producer.NewHashQueueSelector()
	}
	sender, err := given.producer(given.instance(), producer.WithQueueSelector(selector))
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	var messages []*primitive.Message
	for _, body := range given.Bodies {
		messages = append(messages, given.message(body))
	}
	if given.Batch {
		result, err := sender.SendSync(context.Background(), messages...)
		if err != nil {
			return err
		}
		given.tellSent("", result)
		messages = nil
	}
	for number, message := range messages {
		if given.Oneway {
			if err := sender.SendOneWay(context.Background(), message); err != nil {
				return err
			}
			continue
		}
		result, err := sender.SendSync(context.Background(), message)
		if err != nil {
			return err
		}
		given.tellSent(given.Bodies[number], result)
	}
	given.tell(row{"done": true})
	return nil
}

func (given todo) tellSent(body string, result *primitive.SendResult) {
	given.tell(row{"sent": body, "status": statuses[result.Status], "queue": result.MessageQueue.QueueId,
		"offset": result.QueueOffset, "id": result.MsgID})
}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnkonwnState,
}

type listener struct{ given todo }

func (one listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return states[one.given.Decisions[text(message.Body)]]
}

func (one listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	one.given.tell(row{"checked": text(message.Body), "id": message.TransactionId})
	return states[one.given.Checks[text(message.Body)]]
}

// transact: "decisions" of bodies, and in "checks" what the check-back says of a body; lives until stopped.
func transact(given todo) error {
	options := given.options(given.instance(), producer.WithGroupName(given.Group))
	sender, err := rocketmq.NewTransactionProducer(listener{given}, options...)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	closers.Store(given.ID, func() { sender.Shutdown() })
	for body := range given.Decisions {
		result, err := sender.SendMessageInTransaction(context.Background(), given.message(body))
		if err != nil {
			return err
		}
		given.tellSent(body, result.SendResult)
	}
	given.tell(row{"done": true})
	return nil
}

// ask: sends "bodies" as questions, one after the other, and tells the answers.
func ask(given todo) error {
	sender, err := given.producer(given.instance())
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	for _, body := range given.Bodies {
		answer, err := sender.Request(context.Background(), 15*time.Second, given.message(body))
		if err != nil {
			return err
		}
		given.tell(row{"answer": text(answer.Body)})
	}
	given.tell(row{"done": true})
	return nil
}

// pour: "threads" that send to "topic" one message after the other until stopped. Then it tells the bodies that were
// acknowledged, how many sends failed, why the first did, and pauses of more than half a second between acknowledgements: when each
// ended and how long it was, in ms. With "new", a producer whose sends have failed for so many ms gives its place to a new one: that
// asks for the route.
func pour(given todo) error {
	var current atomic.Pointer[rocketmq.Producer]
	made := 0
	renew := func() error {
		made++
		name := fmt.Sprintf("%s-%d", given.instance(), made)
		next, err := given.producer(name, producer.WithSendMsgTimeout(3*time.Second))
		if err != nil {
			return err
		}
		if old := current.Swap(&next); old != nil {
			(*old).Shutdown()
		}
		return nil
	}
	if err := renew(); err != nil {
		return err
	}
	var lock sync.Mutex
	var acknowledged []string
	why := []string{}
	pauses, failed, last, looked := [][2]int64{}, 0, time.Now(), time.Now()
	note := func(body string, good bool) error {
		lock.Lock()
		defer lock.Unlock()
		now := time.Now()
		if !good {
			failed++
			patience := time.Duration(given.New) * time.Millisecond
			if given.New > 0 && now.Sub(last) > patience && now.Sub(looked) > patience {
				looked = now
				return renew()
			}
			return nil
		}
		if now.Sub(last) > time.Second/2 {
			pauses = append(pauses, [2]int64{now.UnixMilli(), now.Sub(last).Milliseconds()})
		}
		last = now
		acknowledged = append(acknowledged, body)
		return nil
	}
	closers.Store(given.ID, func() {})
	var threads sync.WaitGroup
	for number := 0; number < given.Threads; number++ {
		threads.Add(1)
		go func(name string) {
			defer threads.Done()
			for count := 0; given.running(); count++ {
				body := fmt.Sprintf("%s-%d", name, count)
				result, err := (*current.Load()).SendSync(context.Background(), given.message(body))
				good := err == nil && result.Status == primitive.SendOK
				if err := note(body, good); err != nil {
					given.tell(row{"error": err.Error()})
				}
				if err != nil {
					lock.Lock()
					if len(why) < 20 {
						why = append(why, err.Error())
					}
					lock.Unlock()
				}
				if !good {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}(fmt.Sprintf("go-%s-%d", given.ID, number))
	}
	threads.Wait()
	(*current.Load()).Shutdown()
	given.tellAll("acknowledged", acknowledged)
	given.tell(row{"why": why})
	given.tell(row{"failed": failed, "pauses": pauses})
	given.tell(row{"done": true})
	return nil
}

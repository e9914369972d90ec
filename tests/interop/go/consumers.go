package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// push makes a push consumer of "group" and "topic" and starts it; it ends when it is stopped.
func (given todo) push(handle handler, more ...consumer.Option) error {
	options := append([]consumer.Option{consumer.WithNameServer(servers()), consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond)}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: given.Tags}
	if given.Tags == "" {
		selector.Expression = "*"
	}
	if given.SQL != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: given.SQL}
	}
	if err := made.Subscribe(given.Topic, selector, handle); err != nil {
		return err
	}
	closers.Store(given.ID, func() { made.Shutdown() })
	return made.Start()
}

// gather: a push consumer of "group" and "topic" that keeps the bodies; tells how many different ones there are whenever
// that has changed, and when it is stopped which, its pauses, as for pour, since the first message, and how "late" messages
// were that came more than half a second after they were stored: the latest in ms of those that came together from a queue.
func gather(given todo) error {
	var lock sync.Mutex
	pauses, last := [][2]int64{}, time.Time{}
	bodies := map[string]bool{}
	late, lateAt, lateIn := []int64{}, map[int]time.Time{}, map[int]int{}
	err := given.push(func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			age, queue := time.Now().UnixMilli()-message.StoreTimestamp, message.Queue.QueueId
			if body := text(message.Body); !bodies[body] && age > 500 {
				if at, known := lateAt[queue]; !known || time.Since(at) > time.Second {
					late = append(late, 0)
					lateIn[queue] = len(late) - 1
				}
				late[lateIn[queue]], lateAt[queue] = max(late[lateIn[queue]], age), time.Now()
			}
			bodies[text(message.Body)] = true
		}
		if pause := time.Since(last); !last.IsZero() && pause > time.Second/2 {
			pauses = append(pauses, [2]int64{time.Now().UnixMilli(), pause.Milliseconds()})
		}
		last = time.Now()
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	for told := -1; given.running(); time.Sleep(200 * time.Millisecond) {
		lock.Lock()
		count := len(bodies)
		lock.Unlock()
		if count != told {
			told = count
			given.tell(row{"count": count})
		}
	}
	lock.Lock()
	defer lock.Unlock()
	var got []string
	for body := range bodies {
		got = append(got, body)
	}
	given.tellAll("got", got)
	given.tell(row{"pauses": pauses, "late": late})
	given.tell(row{"done": true})
	return nil
}

// consume: a push consumer of "group" and "topic" until it is stopped. "ordered", "broadcasting", "tags", "sql"; bodies in
// "fail" fail always, "most" is how often they are tried again; "answer" replies.
func consume(given todo) error {
	failing := map[string]bool{}
	for _, body := range given.Fail {
		failing[body] = true
	}
	var replier rocketmq.Producer
	if given.Answer {
		var err error
		if replier, err = given.producer("replier-" + given.instance()); err != nil {
			return err
		}
	}
	bad := consumer.ConsumeRetryLater
	options := []consumer.Option{consumer.WithConsumerOrder(given.Ordered)}
	if given.Ordered {
		bad = consumer.SuspendCurrentQueueAMoment
	}
	if given.Most > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(given.Most)))
	}
	if given.Broadcasting {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	err := given.push(func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			given.tellMessage(message)
			if failing[text(message.Body)] {
				result = bad
			}
			if replier != nil {
				if err := reply(replier, message); err != nil {
					given.tell(row{"error": err.Error()})
				}
			}
		}
		return result, nil
	}, options...)
	if err != nil {
		return err
	}
	given.tell(row{"started": true})
	return nil
}

func reply(replier rocketmq.Producer, message *primitive.MessageExt) error {
	// The client that asks sends its first heartbeat a second after its start; nothing can be pushed to it before.
	time.Sleep(1200 * time.Millisecond)
	// CreateReplyMessage takes the body for properties, and makes a message without one.
	answer, err := consumer.CreateReplyMessage(message, nil)
	if err != nil {
		return err
	}
	answer.Body = []byte("a" + text(message.Body))
	_, err = replier.SendSync(context.Background(), answer)
	return err
}

// lite: a pull consumer of "group" that reads "count" messages of "topic" from all its queues, from "offset" on.
func lite(given todo) error {
	made, err := rocketmq.NewPullConsumer(consumer.WithNameServer(servers()), consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if err := made.Subscribe(given.Topic, selector); err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return err
	}
	defer made.Shutdown()
	left := given.Count
	queues, err := made.GetTopicRouteInfo(given.Topic)
	if err != nil {
		return err
	}
	for _, queue := range queues {
		for offset := given.Offset; ; {
			result, err := made.PullFrom(context.Background(), queue, offset, 32)
			if err != nil {
				return err
			}
			for _, message := range result.GetMessageExts() {
				given.tellMessage(message)
				left--
			}
			offset = result.NextBeginOffset
			if offset >= result.MaxOffset { // a pull from there waits 20 s for more
				break
			}
		}
	}
	if left != 0 {
		return fmt.Errorf("%d messages left", left)
	}
	given.tell(row{"done": true})
	return nil
}

// RocketMQ's 5.x client for Go: driver ENDPOINTS ACTION KEY=VALUE ..., one line for each thing that happens.
// Release 5.1.2, the newest of the Go proxy, always speaks TLS, has simple consumers only and recalls nothing.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	given  = map[string]string{}
	saying sync.Mutex
)

func say(format string, words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, words...), "\n", " "))
}

func number(key string, fallback int) int {
	value, err := strconv.Atoi(given[key])
	if err != nil {
		return fallback
	}
	return value
}

func or(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func must(err error) {
	if err != nil {
		say("error %v", err)
		os.Exit(1)
	}
}

func nameOf(message *rocketmq.MessageView) string {
	return strings.SplitN(string(message.GetBody()), ".", 2)[0]
}

func said(message *rocketmq.MessageView) {
	tag, group := "-", "-"
	if message.GetTag() != nil {
		tag = *message.GetTag()
	}
	if message.GetMessageGroup() != nil {
		group = *message.GetMessageGroup()
	}
	say("message %s %d %s %s %s %s %d", nameOf(message), message.GetDeliveryAttempt(), tag,
		or(strings.Join(message.GetKeys(), ","), "-"), or(message.GetProperties()["colour"], "-"), group,
		len(message.GetBody()))
}

func config(endpoint string) *rocketmq.Config {
	account := &credentials.SessionCredentials{AccessKey: given["user"], AccessSecret: given["secret"]}
	return &rocketmq.Config{Endpoint: endpoint, ConsumerGroup: given["consumer"], Credentials: account}
}

func messageOf(body string) *rocketmq.Message {
	message := &rocketmq.Message{
		Topic: given["topic"], Body: []byte(body + strings.Repeat(".", number("padding", 0))),
	}
	message.SetTag(or(given["tag"], "t"))
	message.SetKeys("key-" + body)
	message.AddProperty("colour", or(given["colour"], "red"))
	if given["group"] != "" {
		message.SetMessageGroup(given["group"])
	}
	if given["delay"] != "" {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(number("delay", 0)) * time.Millisecond))
	}
	return message
}

func send(endpoint string) {
	end := given["end"]
	check := &rocketmq.TransactionChecker{Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		say("check %s", message.GetBody())
		return rocketmq.COMMIT
	}}
	producer, err := rocketmq.NewProducer(
		config(endpoint), rocketmq.WithTopics(given["topic"]), rocketmq.WithTransactionChecker(check))
	must(err)
	must(producer.Start())
	say("started")
	for _, body := range strings.Split(given["bodies"], ",") {
		if body == "" {
			continue
		}
		if end != "" {
			transaction := producer.BeginTransaction()
			receipts, err := producer.SendWithTransaction(context.TODO(), messageOf(body), transaction)
			must(err)
			say("sent %s %s", body, receipts[0].MessageID)
			if end == "commit" {
				must(transaction.Commit())
			} else if end == "rollback" {
				must(transaction.RollBack())
			}
			continue
		}
		for {
			receipts, err := producer.Send(context.TODO(), messageOf(body))
			if err == nil {
				say("sent %s %s", body, receipts[0].MessageID)
				break
			}
			say("error %v", err)
			if given["retry"] == "" {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Duration(number("every", 0)) * time.Millisecond)
	}
	if end == "orphan" {
		time.Sleep(60 * time.Second)
	}
	producer.GracefulStop()
}

func simple(endpoint string) {
	expression := rocketmq.NewFilterExpression(or(given["filter"], "*"))
	if given["sql"] != "" {
		expression = rocketmq.NewFilterExpressionWithType(given["sql"], rocketmq.SQL92)
	}
	wanted := map[string]*rocketmq.FilterExpression{given["topic"]: expression}
	consumer, err := rocketmq.NewSimpleConsumer(config(endpoint),
		rocketmq.WithAwaitDuration(5*time.Second), rocketmq.WithSubscriptionExpressions(wanted))
	must(err)
	must(consumer.Start())
	say("started")
	end, left := time.Now().Add(time.Duration(number("seconds", 0))*time.Second), number("count", 1_000_000)
	for time.Now().Before(end) && left > 0 {
		messages, err := consumer.Receive(context.TODO(), int32(number("batch", 16)), 10*time.Second)
		if err != nil {
			say("error %v", err)
			if !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
				time.Sleep(time.Second)
			}
		}
		for _, message := range messages {
			said(message)
			left--
			if given["change"] != "" && message.GetDeliveryAttempt() == 1 {
				must(consumer.ChangeInvisibleDuration(message, time.Duration(number("change", 0))*time.Second))
			} else if given["ack"] != "no" {
				if err := consumer.Ack(context.TODO(), message); err != nil {
					say("error %v", err)
				} else {
					say("acked %s", nameOf(message))
				}
			}
		}
	}
	consumer.GracefulStop()
}

func main() {
	os.Setenv("rocketmq.client.logLevel", "error")
	rocketmq.ResetLogger()
	for _, word := range os.Args[3:] {
		key, value, _ := strings.Cut(word, "=")
		given[key] = value
	}
	switch os.Args[2] {
	case "send":
		send(os.Args[1])
	case "simple":
		simple(os.Args[1])
	default:
		say("error this client has no %s", os.Args[2])
		os.Exit(1)
	}
}

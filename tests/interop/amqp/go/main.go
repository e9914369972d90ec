// main URL COUNT: send messages to a queue, receive and accept them, release one and reject one.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	amqp "github.com/Azure/go-amqp"
)

func must(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

func main() {
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := amqp.Dial(ctx, os.Args[1], &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	must(err)
	session, err := conn.NewSession(ctx, nil)
	must(err)
	sender, err := session.NewSender(ctx, "Orders", nil)
	must(err)
	for number := 0; number < count; number++ {
		message := amqp.NewMessage([]byte(fmt.Sprintf("m%d", number)))
		message.ApplicationProperties = map[string]any{"number": int64(number)}
		must(sender.Send(ctx, message, nil))
	}
	receiver, err := session.NewReceiver(ctx, "Orders", &amqp.ReceiverOptions{Credit: 10})
	must(err)
	var got []string
	for len(got) < count {
		message, err := receiver.Receive(ctx, nil)
		must(err)
		if len(got) == 0 && message.Header.DeliveryCount == 0 && string(message.GetData()) == "m0" {
			must(receiver.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true}))
			message, err = receiver.Receive(ctx, nil)
			must(err)
		}
		got = append(got, fmt.Sprintf("%s/%v/%d", message.GetData(), message.ApplicationProperties["number"], message.Header.DeliveryCount))
		must(receiver.AcceptMessage(ctx, message))
	}
	must(conn.Close())
	fmt.Println("ok", strings.Join(got, " "))
}

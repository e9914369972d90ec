import jakarta.jms.*;
import java.util.concurrent.CountDownLatch;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Bench URL COUNT: figures of one connection; "begin NAME", and "end NAME SECONDS COUNT" for each. */
public class Bench {
    interface Work {
        void run() throws Exception;
    }

    static void measure(String name, int count, Work work) throws Exception {
        System.out.println("begin " + name);
        System.out.flush();
        long begun = System.nanoTime();
        work.run();
        System.out.println("end " + name + " " + (System.nanoTime() - begun) / 1e9 + " " + count);
        System.out.flush();
    }

    static void round(Connection connection, int count, String prefix) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue("Bench" + prefix);
        byte[] body = new byte[256];
        MessageProducer producer = session.createProducer(queue);
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(body);
        int few = count / 10;
        measure(prefix + "sync", few, () -> {
            for (int at = 0; at < few; at++) producer.send(message);
        });
        measure(prefix + "async", count, () -> {
            CountDownLatch done = new CountDownLatch(count);
            CompletionListener listener = new CompletionListener() {
                public void onCompletion(Message sent) {
                    done.countDown();
                }

                public void onException(Message sent, Exception error) {
                    error.printStackTrace();
                }
            };
            for (int at = 0; at < count; at++) {
                BytesMessage one = session.createBytesMessage();
                one.writeBytes(body);
                producer.send(one, listener);
            }
            done.await();
        });
        MessageConsumer consumer = session.createConsumer(queue);
        measure(prefix + "receive", count + few, () -> {
            for (int at = 0; at < count + few; at++) if (consumer.receive(20_000) == null) throw new Exception("no message");
        });
        consumer.close();
        Session transacted = connection.createSession(Session.SESSION_TRANSACTED);
        MessageProducer within = transacted.createProducer(transacted.createQueue("Transacted" + prefix));
        measure(prefix + "transacted", few, () -> {
            for (int at = 1; at <= few; at++) {
                within.send(message);
                if (at % 10 == 0) transacted.commit();
            }
        });
        MessageConsumer taker = transacted.createConsumer(transacted.createQueue("Transacted" + prefix));
        measure(prefix + "received", few, () -> {
            for (int at = 1; at <= few; at++) {
                if (taker.receive(20_000) == null) throw new Exception("no message");
                if (at % 10 == 0) transacted.commit();
            }
        });
        session.close();
        transacted.close();
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[1]);
        try (Connection connection = new JmsConnectionFactory(args[0]).createConnection()) {
            connection.start();
            round(connection, count / 2, "warm-");
            round(connection, count, "");
        }
        System.exit(0);
    }
}

import jakarta.jms.*;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnection;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsConnectionListener;

/**
 * Kills URL MODE COUNT WORKERS: work while brokers are killed. Prints "seeded", "did N" for each step, "done", and
 * then the outcome: "NAME n n n ..." for a queue, "again n" for a message that came behind its acknowledgement.
 *
 * MODE move: transacted sessions move messages from the queue In to the queues Left and Right.
 * MODE ack: sessions acknowledge messages of In in groups, by hand.
 */
public class Kills {
    static final int GROUP = 5;
    static final long IDLE_MS = 20_000;
    static final Set<Integer> finished = ConcurrentHashMap.newKeySet();
    /** When a message was received, and when it was acknowledged. */
    static final Map<Integer, long[]> acknowledged = new ConcurrentHashMap<>();
    static final AtomicInteger steps = new AtomicInteger();
    static final List<Long> interruptions = new CopyOnWriteArrayList<>();
    static String url;

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static Connection connect() throws Exception {
        JmsConnection made = (JmsConnection) new JmsConnectionFactory(url).createConnection();
        Class<?>[] kinds = {JmsConnectionListener.class};
        made.addConnectionListener((JmsConnectionListener) Proxy.newProxyInstance(Kills.class.getClassLoader(), kinds, (self, method, args) -> {
            if (method.getName().equals("onConnectionInterrupted")) interruptions.add(System.currentTimeMillis());
            if (method.getName().equals("equals")) return self == args[0];
            return method.getName().equals("hashCode") ? 1 : null;
        }));
        made.start();
        return made;
    }

    static void seed(int count) throws Exception {
        Connection connection = connect();
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue("In"));
        for (int number = 0; number < count; number++) producer.send(session.createTextMessage("" + number));
        connection.close();
        say("seeded");
    }

    static int number(Message message) throws JMSException {
        return Integer.parseInt(((TextMessage) message).getText());
    }

    static void move(int count) throws Exception {
        Connection connection = connect();
        Session session = connection.createSession(Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(session.createQueue("In"));
        MessageProducer left = session.createProducer(session.createQueue("Left"));
        MessageProducer right = session.createProducer(session.createQueue("Right"));
        long last = System.currentTimeMillis();
        while (System.currentTimeMillis() - last < IDLE_MS && finished.size() < count) {
            List<Integer> group = new ArrayList<>();
            try {
                for (int at = 0; at < GROUP; at++) {
                    Message message = consumer.receive(500);
                    if (message == null) break;
                    last = System.currentTimeMillis();
                    int number = number(message);
                    if (finished.contains(number)) say("again " + number);
                    group.add(number);
                    left.send(session.createTextMessage("" + number));
                    right.send(session.createTextMessage("" + number));
                }
                if (group.isEmpty()) continue;
                session.commit();
                finished.addAll(group);
                say("did " + steps.incrementAndGet());
            } catch (JMSException error) {
                say("failed " + error);
                try {
                    session.rollback();
                } catch (JMSException other) {
                    say("failed to roll back " + other);
                }
            }
        }
        connection.close();
    }

    /** Whether the broker had the time to keep an acknowledgement: the client does not wait for that. */
    static boolean isKept(long[] times) {
        if (times == null) return false;
        for (long at : interruptions) if (times[0] - 1_000 <= at && at <= times[1] + 2_000) return false;
        return true;
    }

    static void acknowledge(int count) throws Exception {
        Connection connection = connect();
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue("In"));
        long last = System.currentTimeMillis();
        while (System.currentTimeMillis() - last < IDLE_MS && finished.size() < count) {
            List<Integer> group = new ArrayList<>();
            Message message = null;
            long begun = System.currentTimeMillis();
            for (int at = 0; at < GROUP; at++) {
                Message next = consumer.receive(500);
                if (next == null) break;
                message = next;
                last = System.currentTimeMillis();
                int number = number(message);
                if (isKept(acknowledged.get(number))) say("again " + number);
                group.add(number);
            }
            if (message == null) continue;
            Thread.sleep(20);
            try {
                message.acknowledge();
            } catch (JMSException error) {
                say("failed " + error);
                continue;
            }
            for (int number : group) acknowledged.put(number, new long[] {begun, System.currentTimeMillis()});
            finished.addAll(group);
            say("did " + steps.incrementAndGet());
        }
        connection.close();
    }

    static void drain(String name) throws Exception {
        Connection connection = connect();
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(name));
        StringBuilder line = new StringBuilder(name);
        for (Message message; (message = consumer.receive(5_000)) != null; ) line.append(' ').append(number(message));
        connection.close();
        say(line.toString());
    }

    public static void main(String[] args) throws Exception {
        url = args[0];
        boolean moves = args[1].equals("move");
        int count = Integer.parseInt(args[2]);
        seed(count);
        List<Thread> threads = new ArrayList<>();
        for (int at = 0; at < Integer.parseInt(args[3]); at++) {
            Thread thread = new Thread(() -> {
                try {
                    if (moves) move(count); else acknowledge(count);
                } catch (Exception error) {
                    say("worker failed " + error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        say("done");
        for (String name : moves ? new String[] {"In", "Left", "Right"} : new String[] {"In"}) drain(name);
        say("ended " + finished.size());
        System.exit(0);
    }
}

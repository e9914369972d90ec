import jakarta.jms.*;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Scenarios of Jakarta Messaging: Scenarios URL [NAME ...], a line "ok NAME" or "failed NAME REASON" for each. */
public class Scenarios {
    interface Scenario {
        void run() throws Exception;
    }

    static final Map<String, Scenario> ALL = new LinkedHashMap<>();
    static final long WAIT = 15_000;
    static final long NOTHING = 700;
    static String url;
    static String unique;
    static final List<AutoCloseable> OPEN = new ArrayList<>();

    // ---- helpers ----

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void same(Object expected, Object got) {
        if (expected == null ? got != null : !expected.equals(got)) {
            throw new AssertionError("expected " + expected + ", got " + got);
        }
    }

    static Connection connection(String... options) throws Exception {
        Connection made = factory(options).createConnection();
        OPEN.add(made);
        made.start();
        return made;
    }

    static JmsConnectionFactory factory(String... options) {
        String all = options.length == 0 ? "" : (url.contains("?") ? "&" : "?") + String.join("&", options);
        return new JmsConnectionFactory(url + all);
    }

    static Session session(int mode) throws Exception {
        return connection().createSession(mode);
    }

    static Session auto() throws Exception {
        return session(Session.AUTO_ACKNOWLEDGE);
    }

    static Session transacted() throws Exception {
        return session(Session.SESSION_TRANSACTED);
    }

    static String text(Message message) throws Exception {
        check(message != null, "no message came");
        return ((TextMessage) message).getText();
    }

    static void send(Session session, Destination to, String... texts) throws Exception {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) producer.send(session.createTextMessage(text));
        producer.close();
    }

    static void expect(MessageConsumer consumer, String... texts) throws Exception {
        for (String text : texts) same(text, text(consumer.receive(WAIT)));
    }

    static void nothing(MessageConsumer consumer) throws Exception {
        Message message = consumer.receive(NOTHING);
        check(message == null, "an unexpected message came: " + message);
    }

    static <T extends Throwable> T fails(Class<T> kind, Scenario action) throws Exception {
        try {
            action.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) return kind.cast(error);
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", and nothing was raised");
    }

    static Message roundTrip(MessageMaker maker) throws Exception {
        Session session = auto();
        Queue queue = session.createQueue(unique);
        MessageProducer producer = session.createProducer(queue);
        producer.send(maker.make(session));
        Message got = session.createConsumer(queue).receive(WAIT);
        check(got != null, "no message came");
        return got;
    }

    interface MessageMaker {
        Message make(Session session) throws Exception;
    }

    // ---- messages ----

    static void messages() {
        ALL.put("text", () -> same("h\u00e4llo \ud83d\ude00", text(roundTrip(s -> s.createTextMessage("h\u00e4llo \ud83d\ude00")))));
        ALL.put("text_empty", () -> same("", text(roundTrip(s -> s.createTextMessage("")))));
        ALL.put("text_null", () -> {
            Message got = roundTrip(s -> s.createTextMessage());
            check(got instanceof TextMessage, "a TextMessage stays one");
            same(null, ((TextMessage) got).getText());
        });
        ALL.put("text_large", () -> {
            String large = "x".repeat(1_000_000);
            same(large, text(roundTrip(s -> s.createTextMessage(large))));
        });
        ALL.put("bytes", () -> {
            BytesMessage got = (BytesMessage) roundTrip(s -> {
                BytesMessage made = s.createBytesMessage();
                made.writeByte((byte) -1);
                made.writeInt(77);
                made.writeDouble(0.1);
                made.writeUTF("w\u00f6rt");
                return made;
            });
            same((byte) -1, got.readByte());
            same(77, got.readInt());
            same(0.1, got.readDouble());
            same("w\u00f6rt", got.readUTF());
            fails(MessageEOFException.class, got::readByte);
        });
        ALL.put("bytes_empty", () -> same(0L, ((BytesMessage) roundTrip(s -> s.createBytesMessage())).getBodyLength()));
        ALL.put("map", () -> {
            MapMessage got = (MapMessage) roundTrip(s -> {
                MapMessage made = s.createMapMessage();
                made.setBoolean("z", true);
                made.setByte("b", (byte) 1);
                made.setShort("h", (short) 2);
                made.setChar("c", 'x');
                made.setInt("i", 3);
                made.setLong("l", 4L);
                made.setFloat("f", 0.1f);
                made.setDouble("d", Double.NaN);
                made.setString("s", "text");
                made.setString("none", null);
                made.setBytes("x", new byte[] {0, 1, 2});
                return made;
            });
            same(Boolean.TRUE, got.getObject("z"));
            same((byte) 1, got.getObject("b"));
            same((short) 2, got.getObject("h"));
            same('x', got.getObject("c"));
            same(3, got.getObject("i"));
            same(4L, got.getObject("l"));
            same(0.1f, got.getObject("f"));
            same(Double.NaN, got.getObject("d"));
            same("text", got.getObject("s"));
            same(null, got.getObject("none"));
            check(got.itemExists("none"), "the null stays an entry");
            check(Arrays.equals(new byte[] {0, 1, 2}, got.getBytes("x")), "bytes");
        });
        ALL.put("map_empty", () -> check(!((MapMessage) roundTrip(s -> s.createMapMessage())).getMapNames().hasMoreElements(), "no names"));
        ALL.put("stream", () -> {
            StreamMessage got = (StreamMessage) roundTrip(s -> {
                StreamMessage made = s.createStreamMessage();
                made.writeBoolean(false);
                made.writeShort((short) 5);
                made.writeLong(1L << 40);
                made.writeFloat(1.5f);
                made.writeString("text");
                made.writeObject(null);
                made.writeBytes(new byte[] {7});
                return made;
            });
            same(false, got.readBoolean());
            same((short) 5, got.readObject());
            same(1L << 40, got.readObject());
            same(1.5f, got.readObject());
            same("text", got.readString());
            same(null, got.readObject());
            check(Arrays.equals(new byte[] {7}, (byte[]) got.readObject()), "bytes");
            fails(MessageEOFException.class, got::readObject);
        });
        ALL.put("object", () -> {
            ObjectMessage got = (ObjectMessage) roundTrip(s -> s.createObjectMessage(new ArrayList<>(List.of("a", 1, 2.5))));
            same(List.of("a", 1, 2.5), got.getObject());
        });
        ALL.put("message_without_body", () -> {
            Message got = roundTrip(s -> {
                Message made = s.createMessage();
                made.setStringProperty("name", "value");
                return made;
            });
            check(!(got instanceof TextMessage) && !(got instanceof BytesMessage), "a plain Message stays one");
            same("value", got.getStringProperty("name"));
        });
        ALL.put("properties_typed", () -> {
            Message got = roundTrip(s -> {
                Message made = s.createTextMessage("x");
                made.setBooleanProperty("z", true);
                made.setByteProperty("b", (byte) -7);
                made.setShortProperty("h", (short) 300);
                made.setIntProperty("i", 1 << 30);
                made.setLongProperty("l", Long.MIN_VALUE);
                made.setFloatProperty("f", Float.MIN_VALUE);
                made.setDoubleProperty("d", Double.MAX_VALUE);
                made.setStringProperty("s", "text");
                made.setStringProperty("empty", "");
                made.setStringProperty("none", null);
                made.setObjectProperty("o", 5L);
                return made;
            });
            same(Boolean.TRUE, got.getObjectProperty("z"));
            same((byte) -7, got.getObjectProperty("b"));
            same((short) 300, got.getObjectProperty("h"));
            same(1 << 30, got.getObjectProperty("i"));
            same(Long.MIN_VALUE, got.getObjectProperty("l"));
            same(Float.MIN_VALUE, got.getObjectProperty("f"));
            same(Double.MAX_VALUE, got.getObjectProperty("d"));
            same("text", got.getObjectProperty("s"));
            same("", got.getObjectProperty("empty"));
            same(null, got.getObjectProperty("none"));
            same(5L, got.getObjectProperty("o"));
            Set<String> names = new HashSet<>();
            for (Enumeration<?> each = got.getPropertyNames(); each.hasMoreElements(); ) {
                String name = (String) each.nextElement();
                if (!name.startsWith("JMS")) names.add(name);
            }
            same(Set.of("z", "b", "h", "i", "l", "f", "d", "s", "empty", "none", "o"), names);
        });
        ALL.put("properties_with_names_of_rocketmq", () -> {
            Message got = roundTrip(s -> {
                Message made = s.createTextMessage("x");
                made.setStringProperty("UNIQ_KEY", "u");
                made.setStringProperty("DELAY", "3");
                made.setIntProperty("WAIT", 4);
                return made;
            });
            same("u", got.getStringProperty("UNIQ_KEY"));
            same("3", got.getStringProperty("DELAY"));
            same(4, got.getIntProperty("WAIT"));
        });
        ALL.put("headers", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            TextMessage made = session.createTextMessage("x");
            made.setJMSCorrelationID("correlation");
            made.setJMSType("Blue");
            made.setJMSReplyTo(session.createTopic("Answers"));
            long before = System.currentTimeMillis();
            producer.send(made, DeliveryMode.NON_PERSISTENT, 8, 3_600_000);
            Message got = session.createConsumer(queue).receive(WAIT);
            same(made.getJMSMessageID(), got.getJMSMessageID());
            same("correlation", got.getJMSCorrelationID());
            same("Blue", got.getJMSType());
            same("Answers", ((Topic) got.getJMSReplyTo()).getTopicName());
            same(unique, ((Queue) got.getJMSDestination()).getQueueName());
            same(DeliveryMode.NON_PERSISTENT, got.getJMSDeliveryMode());
            same(8, got.getJMSPriority());
            same(made.getJMSTimestamp(), got.getJMSTimestamp());
            same(made.getJMSExpiration(), got.getJMSExpiration());
            check(got.getJMSExpiration() >= before + 3_600_000, "the expiration is a time");
            same(false, got.getJMSRedelivered());
            same(1, got.getIntProperty("JMSXDeliveryCount"));
        });
        ALL.put("correlation_id_bytes", () -> {
            Message got = roundTrip(s -> {
                Message made = s.createTextMessage("x");
                made.setJMSCorrelationIDAsBytes(new byte[] {0, 5, (byte) 200});
                return made;
            });
            check(Arrays.equals(new byte[] {0, 5, (byte) 200}, got.getJMSCorrelationIDAsBytes()), "bytes");
        });
        ALL.put("correlation_id_of_a_message", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            TextMessage first = session.createTextMessage("first");
            producer.send(first);
            TextMessage second = session.createTextMessage("second");
            second.setJMSCorrelationID(first.getJMSMessageID());
            producer.send(second);
            MessageConsumer consumer = session.createConsumer(queue);
            Message one = consumer.receive(WAIT), two = consumer.receive(WAIT);
            same(one.getJMSMessageID(), two.getJMSCorrelationID());
        });
        ALL.put("user_id", () -> {
            Session session = connection("jms.populateJMSXUserID=true", "jms.username=anna", "jms.password=secret").createSession();
            Queue queue = session.createQueue(unique);
            send(session, queue, "x");
            same("anna", session.createConsumer(queue).receive(WAIT).getStringProperty("JMSXUserID"));
        });
        ALL.put("group_properties", () -> {
            Message got = roundTrip(s -> {
                Message made = s.createTextMessage("x");
                made.setStringProperty("JMSXGroupID", "g");
                made.setIntProperty("JMSXGroupSeq", 5);
                return made;
            });
            same("g", got.getStringProperty("JMSXGroupID"));
            same(5, got.getIntProperty("JMSXGroupSeq"));
        });
        ALL.put("disabled_message_id_and_timestamp", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            producer.setDisableMessageID(true);
            producer.setDisableMessageTimestamp(true);
            producer.send(session.createTextMessage("x"));
            same("x", text(session.createConsumer(queue).receive(WAIT)));
        });
        ALL.put("forwarded_message", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique), other = session.createQueue(unique + "-other");
            MessageProducer producer = session.createProducer(queue);
            TextMessage made = session.createTextMessage("x");
            made.setIntProperty("n", 4);
            producer.send(made);
            Message got = session.createConsumer(queue).receive(WAIT);
            session.createProducer(other).send(got);
            Message again = session.createConsumer(other).receive(WAIT);
            same("x", text(again));
            same(4, again.getIntProperty("n"));
        });
        ALL.put("received_message_is_read_only", () -> {
            TextMessage got = (TextMessage) roundTrip(s -> s.createTextMessage("x"));
            fails(MessageNotWriteableException.class, () -> got.setText("y"));
            got.clearBody();
            got.setText("y");
        });
        ALL.put("get_body", () -> same("x", roundTrip(s -> s.createTextMessage("x")).getBody(String.class)));
    }

    // ---- queues ----

    static void queues() {
        ALL.put("queue_in_order", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            String[] texts = new String[300];
            for (int i = 0; i < texts.length; i++) texts[i] = "m" + i;
            send(session, queue, texts);
            expect(session.createConsumer(queue), texts);
        });
        ALL.put("queue_before_its_first_consumer", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two");
            session.close();
            Session later = auto();
            expect(later.createConsumer(later.createQueue(unique)), "one", "two");
        });
        ALL.put("queue_with_dots_and_slashes", () -> {
            Session session = auto();
            Queue queue = session.createQueue("orders.eu/" + unique);
            send(session, queue, "one");
            Message got = session.createConsumer(queue).receive(WAIT);
            same("one", text(got));
            same("orders.eu/" + unique, ((Queue) got.getJMSDestination()).getQueueName());
        });
        ALL.put("queue_shared_by_consumers", () -> {
            Session sending = auto();
            Queue queue = sending.createQueue(unique);
            Connection other = connection("jms.prefetchPolicy.all=2");
            List<MessageConsumer> consumers = new ArrayList<>();
            for (int i = 0; i < 3; i++) consumers.add(other.createSession().createConsumer(queue));
            String[] texts = new String[30];
            for (int i = 0; i < texts.length; i++) texts[i] = "m" + i;
            send(sending, queue, texts);
            Set<String> seen = new HashSet<>();
            long end = System.currentTimeMillis() + WAIT;
            while (seen.size() < 30 && System.currentTimeMillis() < end) {
                for (MessageConsumer consumer : consumers) {
                    Message got = consumer.receive(50);
                    if (got != null) check(seen.add(text(got)), "a message came twice");
                }
            }
            same(30, seen.size());
        });
        ALL.put("queue_slow_consumer_holds_only_its_credit", () -> {
            Session sending = auto();
            Queue queue = sending.createQueue(unique);
            MessageConsumer slow = connection("jms.prefetchPolicy.all=1").createSession().createConsumer(queue);
            send(sending, queue, "m0", "m1", "m2", "m3");
            Thread.sleep(500);
            MessageConsumer fast = auto().createConsumer(queue);
            Set<String> seen = new HashSet<>();
            for (int i = 0; i < 3; i++) seen.add(text(fast.receive(WAIT)));
            same(Set.of("m1", "m2", "m3"), seen);
            expect(slow, "m0");
        });
        ALL.put("receive_no_wait", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageConsumer consumer = session.createConsumer(queue);
            same(null, consumer.receiveNoWait());
            send(session, queue, "one");
            Message got = null;
            for (int i = 0; i < 100 && got == null; i++) {
                got = consumer.receiveNoWait();
                Thread.sleep(20);
            }
            same("one", text(got));
        });
        ALL.put("receive_without_prefetch", () -> {
            Session session = connection("jms.prefetchPolicy.all=0").createSession();
            Queue queue = session.createQueue(unique);
            MessageConsumer consumer = session.createConsumer(queue);
            same(null, consumer.receiveNoWait());
            same(null, consumer.receive(100));
            send(session, queue, "one", "two");
            expect(consumer, "one", "two");
            same(null, consumer.receiveNoWait());
        });
        ALL.put("listener", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(text(message));
                } catch (Exception error) {
                    seen.add(error.toString());
                }
            });
            Session sending = auto();
            send(sending, queue, "one", "two");
            same("one", seen.poll(WAIT, TimeUnit.MILLISECONDS));
            same("two", seen.poll(WAIT, TimeUnit.MILLISECONDS));
        });
        ALL.put("listener_that_fails_gets_the_message_again", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
            AtomicInteger calls = new AtomicInteger();
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(text(message));
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
                if (calls.incrementAndGet() == 1) throw new java.lang.IllegalStateException("the first time fails");
            });
            send(auto(), queue, "one");
            same("one", seen.poll(WAIT, TimeUnit.MILLISECONDS));
            same("one", seen.poll(WAIT, TimeUnit.MILLISECONDS));
        });
        ALL.put("completion_listener", () -> {
            Session session = auto();
            MessageProducer producer = session.createProducer(session.createQueue(unique));
            CountDownLatch done = new CountDownLatch(20);
            AtomicInteger failures = new AtomicInteger();
            CompletionListener listener = new CompletionListener() {
                public void onCompletion(Message message) {
                    done.countDown();
                }

                public void onException(Message message, Exception error) {
                    failures.incrementAndGet();
                    done.countDown();
                }
            };
            for (int i = 0; i < 20; i++) producer.send(session.createTextMessage("m" + i), listener);
            check(done.await(WAIT, TimeUnit.MILLISECONDS), "all sends are completed");
            same(0, failures.get());
        });
        ALL.put("async_send", () -> {
            Session session = connection("jms.forceAsyncSend=true").createSession();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two");
            expect(session.createConsumer(queue), "one", "two");
        });
        ALL.put("presettled_producer_and_consumer", () -> {
            Session session = connection("jms.presettlePolicy.presettleAll=true").createSession();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two");
            expect(session.createConsumer(queue), "one", "two");
        });
        ALL.put("anonymous_producer", () -> {
            Session session = auto();
            MessageProducer producer = session.createProducer(null);
            Queue one = session.createQueue(unique + "-1"), two = session.createQueue(unique + "-2");
            producer.send(one, session.createTextMessage("to one"));
            producer.send(two, session.createTextMessage("to two"));
            expect(session.createConsumer(one), "to one");
            expect(session.createConsumer(two), "to two");
        });
        ALL.put("consumer_close_gives_back", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two", "three");
            MessageConsumer first = session.createConsumer(queue);
            expect(first, "one");
            first.close();
            expect(session.createConsumer(queue), "two", "three");
        });
        ALL.put("connection_close_gives_back", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two");
            Connection other = connection();
            expect(other.createSession(Session.CLIENT_ACKNOWLEDGE).createConsumer(queue), "one");
            other.close();
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "one", "two");
        });
        ALL.put("delivery_delay", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageConsumer consumer = session.createConsumer(queue);
            MessageProducer producer = session.createProducer(queue);
            producer.setDeliveryDelay(2_000);
            TextMessage made = session.createTextMessage("late");
            long before = System.currentTimeMillis();
            producer.send(made);
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("now"));
            expect(consumer, "now");
            Message got = consumer.receive(WAIT);
            same("late", text(got));
            check(System.currentTimeMillis() - before >= 1_500, "it came at its time");
            check(got.getJMSDeliveryTime() >= before + 2_000, "the delivery time is kept");
        });
        ALL.put("time_to_live", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            producer.setTimeToLive(200);
            producer.send(session.createTextMessage("old"));
            producer.setTimeToLive(0);
            producer.send(session.createTextMessage("lasts"));
            Thread.sleep(500);
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "lasts");
            nothing(consumer);
        });
        ALL.put("browser", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two", "three");
            QueueBrowser browser = session.createBrowser(queue);
            List<String> seen = new ArrayList<>();
            for (Enumeration<?> each = browser.getEnumeration(); each.hasMoreElements(); ) seen.add(text((Message) each.nextElement()));
            same(List.of("one", "two", "three"), seen);
            browser.close();
            expect(session.createConsumer(queue), "one", "two", "three");
        });
        ALL.put("browser_of_an_empty_queue", () -> {
            Session session = auto();
            check(!session.createBrowser(session.createQueue(unique)).getEnumeration().hasMoreElements(), "it is empty");
        });
        ALL.put("browser_with_a_selector", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            for (int i = 0; i < 4; i++) {
                TextMessage made = session.createTextMessage("m" + i);
                made.setIntProperty("n", i);
                producer.send(made);
            }
            List<String> seen = new ArrayList<>();
            for (Enumeration<?> each = session.createBrowser(queue, "n >= 2").getEnumeration(); each.hasMoreElements(); ) {
                seen.add(text((Message) each.nextElement()));
            }
            same(List.of("m2", "m3"), seen);
        });
        ALL.put("message_groups_stay_together", () -> {
            Session sending = auto();
            Queue queue = sending.createQueue(unique);
            Connection other = connection("jms.prefetchPolicy.all=3");
            MessageConsumer one = other.createSession().createConsumer(queue), two = other.createSession().createConsumer(queue);
            MessageProducer producer = sending.createProducer(queue);
            for (int i = 0; i < 20; i++) {
                TextMessage made = sending.createTextMessage("m" + i);
                made.setStringProperty("JMSXGroupID", "g" + i % 2);
                producer.send(made);
            }
            Map<String, Set<Integer>> of = new LinkedHashMap<>();
            Map<String, List<Integer>> order = new LinkedHashMap<>();
            int count = 0;
            long end = System.currentTimeMillis() + WAIT;
            while (count < 20 && System.currentTimeMillis() < end) {
                for (int i = 0; i < 2; i++) {
                    Message got = (i == 0 ? one : two).receive(50);
                    if (got == null) continue;
                    count++;
                    String group = got.getStringProperty("JMSXGroupID");
                    of.computeIfAbsent(group, key -> new HashSet<>()).add(i);
                    order.computeIfAbsent(group, key -> new ArrayList<>()).add(Integer.parseInt(text(got).substring(1)));
                }
            }
            same(20, count);
            for (Set<Integer> consumers : of.values()) same(1, consumers.size());
            for (List<Integer> each : order.values()) {
                List<Integer> sorted = new ArrayList<>(each);
                Collections.sort(sorted);
                same(sorted, each);
            }
        });
    }

    // ---- acknowledgement ----

    static void acknowledgement() {
        ALL.put("auto_acknowledge", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two");
            Connection other = connection();
            expect(other.createSession(Session.AUTO_ACKNOWLEDGE).createConsumer(queue), "one");
            other.close();
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "two");
            nothing(consumer);
        });
        ALL.put("dups_ok_acknowledge", () -> {
            Session session = session(Session.DUPS_OK_ACKNOWLEDGE);
            Queue queue = session.createQueue(unique);
            String[] texts = new String[50];
            for (int i = 0; i < texts.length; i++) texts[i] = "m" + i;
            send(session, queue, texts);
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, texts);
            session.close();
            Session later = auto();
            nothing(later.createConsumer(later.createQueue(unique)));
        });
        ALL.put("client_acknowledge_all_before", () -> {
            Connection first = connection();
            Session session = first.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two", "three");
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "one");
            Message two = consumer.receive(WAIT);
            two.acknowledge();
            expect(consumer, "three");
            first.close();
            Session later = auto();
            MessageConsumer rest = later.createConsumer(later.createQueue(unique));
            expect(rest, "three");
            nothing(rest);
        });
        ALL.put("individual_acknowledge", () -> {
            Connection first = connection();
            Session session = first.createSession(101);
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two", "three");
            MessageConsumer consumer = session.createConsumer(queue);
            Message one = consumer.receive(WAIT), two = consumer.receive(WAIT), three = consumer.receive(WAIT);
            two.acknowledge();
            first.close();
            Session later = auto();
            MessageConsumer rest = later.createConsumer(later.createQueue(unique));
            expect(rest, "one", "three");
            nothing(rest);
        });
        ALL.put("recover_in_order", () -> {
            Session session = session(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(unique);
            send(session, queue, "one", "two", "three");
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "one", "two");
            session.recover();
            Message one = consumer.receive(WAIT);
            same("one", text(one));
            same(true, one.getJMSRedelivered());
            check(one.getIntProperty("JMSXDeliveryCount") >= 2, "the delivery is counted");
            expect(consumer, "two", "three");
        });
        ALL.put("client_policy_of_redeliveries", () -> {
            Session session = connection("jms.redeliveryPolicy.maxRedeliveries=1", "jms.redeliveryPolicy.outcome=REJECTED").createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(unique);
            send(session, queue, "poison", "good");
            MessageConsumer consumer = session.createConsumer(queue);
            for (int i = 0; i < 2; i++) {
                expect(consumer, "poison");
                session.recover();
            }
            expect(consumer, "good");
        });
    }

    // ---- transactions ----

    static void transactions() {
        ALL.put("commit_of_sends", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            Session other = auto();
            MessageConsumer consumer = other.createConsumer(queue);
            send(session, queue, "one", "two");
            nothing(consumer);
            session.commit();
            expect(consumer, "one", "two");
        });
        ALL.put("rollback_of_sends", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one");
            session.rollback();
            send(session, queue, "two");
            session.commit();
            MessageConsumer consumer = auto().createConsumer(queue);
            expect(consumer, "two");
            nothing(consumer);
        });
        ALL.put("commit_of_receives", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            send(auto(), queue, "one", "two");
            expect(session.createConsumer(queue), "one", "two");
            session.commit();
            session.close();
            nothing(auto().createConsumer(queue));
        });
        ALL.put("rollback_of_receives_in_order", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            send(auto(), queue, "one", "two", "three");
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "one", "two");
            session.rollback();
            Message one = consumer.receive(WAIT);
            same("one", text(one));
            same(true, one.getJMSRedelivered());
            check(one.getIntProperty("JMSXDeliveryCount") == 2, "the delivery is counted");
            expect(consumer, "two", "three");
            session.commit();
        });
        ALL.put("receive_and_send_in_one_transaction", () -> {
            Session session = transacted();
            Queue in = session.createQueue(unique + "-in"), out = session.createQueue(unique + "-out");
            send(auto(), in, "one");
            MessageConsumer consumer = session.createConsumer(in);
            expect(consumer, "one");
            send(session, out, "answer");
            session.rollback();
            MessageConsumer results = auto().createConsumer(out);
            nothing(results);
            expect(consumer, "one");
            send(session, out, "answer");
            session.commit();
            expect(results, "answer");
            nothing(consumer);
        });
        ALL.put("connection_that_closes_rolls_back", () -> {
            Connection first = connection();
            Session session = first.createSession(Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(unique), other = session.createQueue(unique + "-other");
            send(auto(), queue, "one");
            expect(session.createConsumer(queue), "one");
            send(session, other, "lost");
            first.close();
            Session later = auto();
            expect(later.createConsumer(queue), "one");
            nothing(later.createConsumer(other));
        });
        ALL.put("session_that_closes_rolls_back", () -> {
            Connection first = connection();
            Session session = first.createSession(Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(unique);
            send(session, queue, "lost");
            session.close();
            nothing(first.createSession().createConsumer(queue));
        });
        ALL.put("transactions_one_after_the_other", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            List<String> expected = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                send(session, queue, "a" + i, "b" + i);
                if (i % 2 == 0) {
                    session.commit();
                    expected.addAll(List.of("a" + i, "b" + i));
                } else {
                    session.rollback();
                }
            }
            MessageConsumer consumer = auto().createConsumer(queue);
            expect(consumer, expected.toArray(new String[0]));
            nothing(consumer);
        });
        ALL.put("empty_transactions", () -> {
            Session session = transacted();
            session.commit();
            session.rollback();
            session.commit();
        });
        ALL.put("transacted_listener", () -> {
            Session session = transacted();
            Queue queue = session.createQueue(unique);
            LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
            AtomicInteger calls = new AtomicInteger();
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    if (calls.incrementAndGet() == 1) {
                        session.rollback();
                    } else {
                        seen.add(text(message));
                        session.commit();
                    }
                } catch (Exception error) {
                    seen.add(error.toString());
                }
            });
            send(auto(), queue, "one", "two");
            same("one", seen.poll(WAIT, TimeUnit.MILLISECONDS));
            same("two", seen.poll(WAIT, TimeUnit.MILLISECONDS));
        });
    }

    // ---- topics ----

    static void topics() {
        ALL.put("topic", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            MessageConsumer one = session.createConsumer(topic), two = auto().createConsumer(topic);
            send(session, topic, "a", "b");
            expect(one, "a", "b");
            expect(two, "a", "b");
        });
        ALL.put("topic_begins_at_the_subscription", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            send(session, topic, "before");
            MessageConsumer consumer = session.createConsumer(topic);
            send(session, topic, "after");
            expect(consumer, "after");
        });
        ALL.put("topic_destination", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createConsumer(topic);
            send(session, topic, "a");
            same(unique, ((Topic) consumer.receive(WAIT).getJMSDestination()).getTopicName());
        });
        ALL.put("topic_no_local", () -> {
            Connection mine = connection();
            Session session = mine.createSession();
            Topic topic = session.createTopic(unique);
            MessageConsumer deaf = session.createConsumer(topic, null, true), all = session.createConsumer(topic);
            send(session, topic, "mine");
            send(auto(), topic, "theirs");
            expect(all, "mine", "theirs");
            expect(deaf, "theirs");
        });
        ALL.put("topic_with_client_acknowledge_recovers", () -> {
            Session session = session(Session.CLIENT_ACKNOWLEDGE);
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createConsumer(topic);
            send(auto(), topic, "a", "b");
            expect(consumer, "a", "b");
            session.recover();
            expect(consumer, "a", "b");
            Message last = null;
            check(last == null, "done");
        });
        ALL.put("topic_transacted_rollback", () -> {
            Session session = transacted();
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createConsumer(topic);
            send(auto(), topic, "a", "b");
            expect(consumer, "a", "b");
            session.rollback();
            expect(consumer, "a", "b");
            session.commit();
            nothing(consumer);
        });
        ALL.put("durable_subscription", () -> {
            Connection first = withClientId("client-" + unique);
            Session session = first.createSession();
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createDurableSubscriber(topic, "sub");
            send(session, topic, "a");
            expect(consumer, "a");
            first.close();
            send(auto(), topic, "b", "c");
            Connection second = withClientId("client-" + unique);
            expect(second.createSession().createDurableSubscriber(topic, "sub"), "b", "c");
        });
        ALL.put("durable_subscription_keeps_the_unacknowledged", () -> {
            Connection first = withClientId("client-" + unique);
            Session session = first.createSession(Session.CLIENT_ACKNOWLEDGE);
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createDurableSubscriber(topic, "sub");
            send(session, topic, "a", "b");
            Message a = consumer.receive(WAIT);
            a.acknowledge();
            expect(consumer, "b");
            first.close();
            Connection second = withClientId("client-" + unique);
            MessageConsumer again = second.createSession().createDurableSubscriber(topic, "sub");
            expect(again, "b");
            nothing(again);
        });
        ALL.put("durable_subscription_in_use", () -> {
            Connection first = withClientId("client-" + unique);
            Session session = first.createSession();
            Topic topic = session.createTopic(unique);
            session.createDurableSubscriber(topic, "sub");
            fails(JMSException.class, () -> session.createDurableSubscriber(topic, "sub"));
        });
        ALL.put("unsubscribe", () -> {
            Connection first = withClientId("client-" + unique);
            Session session = first.createSession();
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createDurableSubscriber(topic, "sub");
            consumer.close();
            send(session, topic, "lost");
            session.unsubscribe("sub");
            MessageConsumer again = session.createDurableSubscriber(topic, "sub");
            send(session, topic, "new");
            expect(again, "new");
        });
        ALL.put("unsubscribe_of_nothing", () -> {
            Session session = withClientId("client-" + unique).createSession();
            fails(InvalidDestinationException.class, () -> session.unsubscribe("nothing"));
        });
        ALL.put("unsubscribe_while_in_use", () -> {
            Session session = withClientId("client-" + unique).createSession();
            session.createDurableSubscriber(session.createTopic(unique), "sub");
            fails(JMSException.class, () -> session.unsubscribe("sub"));
        });
        ALL.put("durable_needs_a_client_id", () -> {
            Session session = auto();
            fails(JMSException.class, () -> session.createDurableConsumer(session.createTopic(unique), "sub"));
        });
        ALL.put("shared_subscription", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            String name = "shared-" + unique;
            Connection other = connection("jms.prefetchPolicy.all=1");
            MessageConsumer one = other.createSession().createSharedConsumer(topic, name);
            MessageConsumer two = other.createSession().createSharedConsumer(topic, name);
            MessageConsumer own = session.createConsumer(topic);
            String[] texts = new String[10];
            for (int i = 0; i < texts.length; i++) texts[i] = "m" + i;
            send(session, topic, texts);
            Set<String> seen = new HashSet<>();
            long end = System.currentTimeMillis() + WAIT;
            while (seen.size() < 10 && System.currentTimeMillis() < end) {
                for (MessageConsumer consumer : List.of(one, two)) {
                    Message got = consumer.receive(50);
                    if (got != null) check(seen.add(text(got)), "a message came twice");
                }
            }
            same(10, seen.size());
            expect(own, texts);
        });
        ALL.put("shared_durable_subscription", () -> {
            String name = "shared-" + unique;
            Connection first = connection(), second = connection();
            Session session = first.createSession();
            Topic topic = session.createTopic(unique);
            MessageConsumer one = session.createSharedDurableConsumer(topic, name);
            send(session, topic, "a");
            expect(one, "a");
            first.close();
            send(auto(), topic, "b");
            MessageConsumer two = second.createSession().createSharedDurableConsumer(topic, name);
            expect(two, "b");
        });
        ALL.put("shared_durable_unsubscribe", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            String name = "shared-" + unique;
            session.createSharedDurableConsumer(topic, name).close();
            send(session, topic, "lost");
            session.unsubscribe(name);
            MessageConsumer again = session.createSharedDurableConsumer(topic, name);
            send(session, topic, "new");
            expect(again, "new");
        });
        ALL.put("queue_and_topic_subscription_apart", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique + "-t");
            Queue queue = session.createQueue(unique + "-q");
            MessageConsumer subscriber = session.createConsumer(topic), consumer = session.createConsumer(queue);
            send(session, topic, "to topic");
            send(session, queue, "to queue");
            expect(subscriber, "to topic");
            expect(consumer, "to queue");
            nothing(subscriber);
            nothing(consumer);
        });
    }

    static Connection withClientId(String id) throws Exception {
        Connection made = factory().createConnection();
        OPEN.add(made);
        made.setClientID(id);
        made.start();
        return made;
    }

    // ---- selectors ----

    static void select(String selector, List<String> expected, MessageMaker... makers) throws Exception {
        Session session = auto();
        Queue queue = session.createQueue(unique);
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue, selector);
        for (MessageMaker maker : makers) {
            Message made = maker.make(session);
            producer.send(made, made.getJMSDeliveryMode(), made.getIntProperty("p"), 0);
        }
        expect(consumer, expected.toArray(new String[0]));
        nothing(consumer);
    }

    static MessageMaker with(String text, Object... pairs) {
        return session -> {
            TextMessage made = session.createTextMessage(text);
            made.setIntProperty("p", 4);
            for (int i = 0; i < pairs.length; i += 2) made.setObjectProperty((String) pairs[i], pairs[i + 1]);
            return made;
        };
    }

    static void selectors() {
        ALL.put("selector_text", () -> select("colour = 'red'", List.of("a"), with("a", "colour", "red"), with("b", "colour", "blue"), with("c")));
        ALL.put("selector_numbers", () -> select("n > 2 AND n <= 4", List.of("c", "d"), with("a", "n", 1), with("b", "n", 2), with("c", "n", 3), with("d", "n", 4L), with("e", "n", 5)));
        ALL.put("selector_arithmetic", () -> select("n * 2 + 1 = 7", List.of("b"), with("a", "n", 2), with("b", "n", 3)));
        ALL.put("selector_between", () -> select("n BETWEEN 2 AND 3", List.of("b"), with("a", "n", 1), with("b", "n", 2), with("c", "n", 4)));
        ALL.put("selector_not_between", () -> select("n NOT BETWEEN 2 AND 3", List.of("a", "c"), with("a", "n", 1), with("b", "n", 2), with("c", "n", 4)));
        ALL.put("selector_in", () -> select("c IN ('a', 'it''s')", List.of("x", "y"), with("x", "c", "a"), with("y", "c", "it's"), with("z", "c", "b")));
        ALL.put("selector_not_in", () -> select("c NOT IN ('a')", List.of("z"), with("x", "c", "a"), with("z", "c", "b"), with("none")));
        ALL.put("selector_like", () -> select("c LIKE 'a%_c'", List.of("x"), with("x", "c", "abbc"), with("y", "c", "ac"), with("z", "c", "xabc")));
        ALL.put("selector_like_escape", () -> select("c LIKE '10!%' ESCAPE '!'", List.of("x"), with("x", "c", "10%"), with("y", "c", "100")));
        ALL.put("selector_null", () -> select("c IS NULL", List.of("y"), with("x", "c", "a"), with("y")));
        ALL.put("selector_not_null", () -> select("c IS NOT NULL", List.of("x"), with("x", "c", "a"), with("y")));
        ALL.put("selector_booleans", () -> select("yes = TRUE", List.of("x"), with("x", "yes", true), with("y", "yes", false)));
        ALL.put("selector_or_not", () -> select("NOT (c = 'a' OR c = 'b')", List.of("z"), with("x", "c", "a"), with("y", "c", "b"), with("z", "c", "c"), with("none")));
        ALL.put("selector_types_are_not_mixed", () -> select("n = '5'", List.of("y"), with("x", "n", 5), with("y", "n", "5")));
        ALL.put("selector_floats", () -> select("f > 0.25 AND d < 1E3", List.of("x"), with("x", "f", 0.5f, "d", 10.0), with("y", "f", 0.25f, "d", 10.0), with("z", "f", 0.5f, "d", 5000.0)));
        ALL.put("selector_priority", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            MessageConsumer consumer = session.createConsumer(queue, "JMSPriority > 5");
            producer.send(session.createTextMessage("low"), DeliveryMode.PERSISTENT, 2, 0);
            producer.send(session.createTextMessage("high"), DeliveryMode.PERSISTENT, 7, 0);
            expect(consumer, "high");
            nothing(consumer);
        });
        ALL.put("selector_headers", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            MessageConsumer consumer = session.createConsumer(queue, "JMSType = 'Blue' AND JMSCorrelationID = 'c' AND JMSDeliveryMode = 'PERSISTENT'");
            for (String type : List.of("Red", "Blue")) {
                TextMessage made = session.createTextMessage(type);
                made.setJMSType(type);
                made.setJMSCorrelationID("c");
                producer.send(made);
            }
            expect(consumer, "Blue");
            nothing(consumer);
        });
        ALL.put("selector_message_id", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            TextMessage one = session.createTextMessage("one"), two = session.createTextMessage("two");
            producer.send(one);
            producer.send(two);
            expect(session.createConsumer(queue, "JMSMessageID = '" + two.getJMSMessageID() + "'"), "two");
        });
        ALL.put("selector_leaves_the_rest", () -> {
            Session session = auto();
            Queue queue = session.createQueue(unique);
            MessageProducer producer = session.createProducer(queue);
            MessageConsumer red = session.createConsumer(queue, "colour = 'red'");
            for (String colour : List.of("blue", "red", "green", "red")) {
                TextMessage made = session.createTextMessage(colour);
                made.setStringProperty("colour", colour);
                producer.send(made);
            }
            expect(red, "red", "red");
            nothing(red);
            MessageConsumer rest = auto().createConsumer(queue);
            expect(rest, "blue", "green");
            nothing(rest);
        });
        ALL.put("selector_of_a_topic", () -> {
            Session session = auto();
            Topic topic = session.createTopic(unique);
            MessageConsumer consumer = session.createConsumer(topic, "n = 2");
            MessageProducer producer = session.createProducer(topic);
            for (int i = 0; i < 4; i++) {
                TextMessage made = session.createTextMessage("m" + i);
                made.setIntProperty("n", i);
                producer.send(made);
            }
            expect(consumer, "m2");
            nothing(consumer);
        });
        ALL.put("selector_of_a_durable_subscription", () -> {
            Connection first = withClientId("client-" + unique);
            Session session = first.createSession();
            Topic topic = session.createTopic(unique);
            session.createDurableSubscriber(topic, "sub", "n = 2", false).close();
            MessageProducer producer = session.createProducer(topic);
            for (int i = 0; i < 4; i++) {
                TextMessage made = session.createTextMessage("m" + i);
                made.setIntProperty("n", i);
                producer.send(made);
            }
            MessageConsumer consumer = session.createDurableSubscriber(topic, "sub", "n = 2", false);
            expect(consumer, "m2");
            nothing(consumer);
        });
        ALL.put("selector_that_is_none", () -> {
            Session session = auto();
            fails(InvalidSelectorException.class, () -> session.createConsumer(session.createQueue(unique), "colour = = 'red'"));
        });
    }

    // ---- temporary destinations, requests ----

    static void temporary() {
        ALL.put("temporary_queue_request_reply", () -> {
            Session asking = auto(), answering = auto();
            Queue queue = asking.createQueue(unique);
            TemporaryQueue answers = asking.createTemporaryQueue();
            TextMessage made = asking.createTextMessage("question");
            made.setJMSReplyTo(answers);
            asking.createProducer(queue).send(made);
            Message asked = answering.createConsumer(queue).receive(WAIT);
            same("question", text(asked));
            check(asked.getJMSReplyTo() instanceof TemporaryQueue, "the reply address is a temporary queue");
            send(answering, asked.getJMSReplyTo(), "answer");
            expect(asking.createConsumer(answers), "answer");
        });
        ALL.put("temporary_topic", () -> {
            Session session = auto();
            TemporaryTopic topic = session.createTemporaryTopic();
            MessageConsumer one = session.createConsumer(topic), two = session.createConsumer(topic);
            send(auto(), topic, "a");
            expect(one, "a");
            expect(two, "a");
        });
        ALL.put("temporary_queue_is_its_connections_only", () -> {
            TemporaryQueue queue = auto().createTemporaryQueue();
            Session other = auto();
            fails(JMSException.class, () -> other.createConsumer(queue));
        });
        ALL.put("temporary_queue_deleted", () -> {
            Session session = auto();
            TemporaryQueue queue = session.createTemporaryQueue();
            queue.delete();
            fails(JMSException.class, () -> session.createProducer(queue).send(session.createTextMessage("x")));
        });
        ALL.put("temporary_queue_ends_with_its_connection", () -> {
            Connection first = connection();
            TemporaryQueue queue = first.createSession().createTemporaryQueue();
            first.close();
            Session session = auto();
            fails(JMSException.class, () -> session.createProducer(session.createQueue(queue.getQueueName())).send(session.createTextMessage("x")));
        });
        ALL.put("queue_requestor", () -> {
            Connection asking = connection();
            Queue queue = auto().createQueue(unique);
            Session answering = auto();
            answering.createConsumer(queue).setMessageListener(message -> {
                try {
                    send(answering, message.getJMSReplyTo(), "answer to " + text(message));
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
            });
            QueueSession session = ((QueueConnection) asking).createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
            QueueRequestor requestor = new QueueRequestor(session, queue);
            same("answer to x", text(requestor.request(session.createTextMessage("x"))));
        });
    }

    // ---- connections ----

    static void connections() {
        ALL.put("client_id_twice", () -> {
            withClientId("client-" + unique);
            fails(InvalidClientIDException.class, () -> withClientId("client-" + unique));
        });
        ALL.put("client_id_again_after_close", () -> {
            withClientId("client-" + unique).close();
            withClientId("client-" + unique);
        });
        ALL.put("stopped_connection_delivers_nothing", () -> {
            Connection made = connection();
            made.stop();
            Session session = made.createSession();
            Queue queue = session.createQueue(unique);
            MessageConsumer consumer = session.createConsumer(queue);
            send(session, queue, "one");
            nothing(consumer);
            made.start();
            expect(consumer, "one");
        });
        ALL.put("failover_uri", () -> {
            Connection made = new JmsConnectionFactory("failover:(" + url + ",amqp://127.0.0.1:1)?failover.initialReconnectDelay=10").createConnection();
            OPEN.add(made);
            made.start();
            Session session = made.createSession();
            Queue queue = session.createQueue(unique);
            send(session, queue, "one");
            expect(session.createConsumer(queue), "one");
        });
        ALL.put("heartbeats", () -> {
            Session session = connection("amqp.idleTimeout=1000").createSession();
            Queue queue = session.createQueue(unique);
            Thread.sleep(3_000);
            send(session, queue, "one");
            expect(session.createConsumer(queue), "one");
        });
        ALL.put("small_frames", () -> {
            Session session = connection("amqp.maxFrameSize=4096").createSession();
            Queue queue = session.createQueue(unique);
            String large = "x".repeat(100_000);
            send(session, queue, large);
            same(large, text(session.createConsumer(queue).receive(WAIT)));
        });
        ALL.put("many_sessions_and_consumers", () -> {
            Connection made = connection();
            Session sending = made.createSession();
            List<MessageConsumer> consumers = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                Session session = made.createSession();
                consumers.add(session.createConsumer(session.createQueue(unique + "-" + i)));
                send(sending, session.createQueue(unique + "-" + i), "m" + i);
            }
            for (int i = 0; i < 50; i++) expect(consumers.get(i), "m" + i);
        });
        ALL.put("jms_context", () -> {
            try (JMSContext context = factory().createContext()) {
                Queue queue = context.createQueue(unique);
                context.createProducer().setProperty("n", 5).setJMSType("Blue").send(queue, "body");
                Message got = context.createConsumer(queue).receive(WAIT);
                same("body", text(got));
                same(5, got.getIntProperty("n"));
                same("body", got.getBody(String.class));
            }
        });
        ALL.put("jms_context_receive_body", () -> {
            try (JMSContext context = factory().createContext()) {
                Queue queue = context.createQueue(unique);
                context.createProducer().send(queue, Map.of("a", 5));
                same(5, context.createConsumer(queue).receiveBody(Map.class, WAIT).get("a"));
            }
        });
        ALL.put("jms_context_transacted", () -> {
            try (JMSContext context = factory().createContext(JMSContext.SESSION_TRANSACTED)) {
                Queue queue = context.createQueue(unique);
                context.createProducer().send(queue, "one");
                context.rollback();
                context.createProducer().send(queue, "two");
                context.commit();
                same("two", context.createConsumer(queue).receiveBody(String.class, WAIT));
                context.commit();
            }
        });
        ALL.put("metadata", () -> check(connection().getMetaData().getJMSMajorVersion() >= 2, "a version"));
        ALL.put("concurrent_senders", () -> {
            Connection made = connection();
            Queue queue = made.createSession().createQueue(unique);
            List<Thread> threads = new ArrayList<>();
            AtomicInteger failures = new AtomicInteger();
            for (int t = 0; t < 4; t++) {
                int number = t;
                Thread thread = new Thread(() -> {
                    try {
                        Session session = made.createSession();
                        for (int i = 0; i < 25; i++) send(session, queue, number + "-" + i);
                    } catch (Exception error) {
                        failures.incrementAndGet();
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) thread.join();
            same(0, failures.get());
            MessageConsumer consumer = auto().createConsumer(queue);
            Map<String, Integer> last = new LinkedHashMap<>();
            for (int i = 0; i < 100; i++) {
                String[] parts = text(consumer.receive(WAIT)).split("-");
                int before = last.getOrDefault(parts[0], -1);
                check(before < Integer.parseInt(parts[1]), "each session's messages are in order");
                last.put(parts[0], Integer.parseInt(parts[1]));
            }
        });
    }

    public static void main(String[] given) throws Exception {
        url = given[0];
        System.setProperty("org.apache.qpid.jms.deserialization.whitelist", "*");
        messages();
        queues();
        acknowledgement();
        transactions();
        topics();
        selectors();
        temporary();
        connections();
        if (given.length > 1 && given[1].equals("names")) {
            ALL.keySet().forEach(System.out::println);
            return;
        }
        List<String> names = given.length > 1 ? Arrays.asList(given).subList(1, given.length) : new ArrayList<>(ALL.keySet());
        for (String name : names) {
            unique = name.replace('_', '-') + "-" + UUID.randomUUID().toString().substring(0, 8);
            long began = System.currentTimeMillis();
            try {
                ALL.get(name).run();
                System.out.println("ok " + name + " " + (System.currentTimeMillis() - began));
            } catch (Throwable error) {
                String said = String.valueOf(error).replace('\n', ' ');
                System.out.println("failed " + name + " " + said);
                if (System.getenv("TRACE") != null) error.printStackTrace(System.out);
            }
            for (AutoCloseable each : OPEN) {
                try {
                    each.close();
                } catch (Exception error) {
                    // it was closed by the scenario
                }
            }
            OPEN.clear();
            System.out.flush();
        }
        System.exit(0);
    }
}

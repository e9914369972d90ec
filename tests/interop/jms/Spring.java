import jakarta.jms.MessageListener;
import jakarta.jms.TextMessage;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;

/** Spring URL: JmsTemplate sends, a listener container receives in transactions and fails each tenth message once. */
public class Spring {
    static final int COUNT = 100;

    public static void main(String[] args) throws Exception {
        CachingConnectionFactory factory = new CachingConnectionFactory(new JmsConnectionFactory(args[0]));
        JmsTemplate template = new JmsTemplate(factory);
        Set<String> failed = new ConcurrentSkipListSet<>(), got = new ConcurrentSkipListSet<>();
        AtomicInteger again = new AtomicInteger(), twice = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(COUNT);
        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer();
        container.setConnectionFactory(new JmsConnectionFactory(args[0]));
        container.setDestinationName("Orders");
        container.setSessionTransacted(true);
        container.setConcurrency("2-4");
        container.setMessageListener((MessageListener) message -> {
            try {
                String text = ((TextMessage) message).getText();
                if (text.endsWith("0") && failed.add(text)) throw new IllegalStateException("fails once");
                if (message.getJMSRedelivered()) again.incrementAndGet();
                if (got.add(text)) all.countDown(); else twice.incrementAndGet();
            } catch (jakarta.jms.JMSException error) {
                throw new IllegalStateException(error);
            }
        });
        container.afterPropertiesSet();
        container.start();
        for (int number = 0; number < COUNT; number++) template.convertAndSend("Orders", "order " + number);
        boolean came = all.await(60, TimeUnit.SECONDS);
        container.shutdown();
        template.setReceiveTimeout(1_000);
        template.convertAndSend("Answers", "by the template");
        Object answer = template.receiveAndConvert("Answers");
        Object rest = template.receiveAndConvert("Orders");
        factory.destroy();
        System.out.println((came ? "ok " : "late ") + got.size() + " " + again + " " + twice + " " + answer + " " + rest);
        System.exit(0);
    }
}

import jakarta.jms.*;
import org.apache.qpid.jms.JmsConnectionFactory;

/** RoundTrip URL [USER SECRET]: send and receive a message; "ok TEXT PROPERTY", or "refused ERROR". */
public class RoundTrip {
    public static void main(String[] args) {
        JmsConnectionFactory factory =
            args.length > 2 ? new JmsConnectionFactory(args[1], args[2], args[0]) : new JmsConnectionFactory(args[0]);
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue("Orders");
            TextMessage sent = session.createTextMessage("a table");
            sent.setIntProperty("amount", 5);
            session.createProducer(queue).send(sent);
            session.commit();
            TextMessage got = (TextMessage) session.createConsumer(queue, "amount > 4").receive(15_000);
            session.commit();
            System.out.println("ok " + got.getText() + " " + got.getObjectProperty("amount"));
        } catch (JMSException error) {
            System.out.println("refused " + error);
        }
    }
}

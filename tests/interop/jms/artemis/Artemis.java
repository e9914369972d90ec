import java.io.File;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.activemq.artemis.api.core.SimpleString;

/** ActiveMQ Artemis, embedded: Artemis PORT FOLDER. */
public class Artemis {
    public static void main(String[] given) throws Exception {
        ConfigurationImpl config = new ConfigurationImpl();
        config.setSecurityEnabled(false);
        config.setPersistenceEnabled(true);
        config.setJournalDirectory(given[1] + "/journal").setBindingsDirectory(given[1] + "/bindings");
        config.setLargeMessagesDirectory(given[1] + "/large").setPagingDirectory(given[1] + "/paging");
        config.addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + given[0] + "?protocols=AMQP");
        AddressSettings settings = new AddressSettings();
        settings.setDeadLetterAddress(SimpleString.of("DLQ"));
        config.addAddressSetting("#", settings);
        EmbeddedActiveMQ server = new EmbeddedActiveMQ();
        server.setConfiguration(config);
        server.start();
        System.out.println("started");
        Thread.sleep(Long.MAX_VALUE);
    }
}

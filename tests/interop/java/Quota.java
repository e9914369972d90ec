import com.alibaba.fastjson.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Quota NAMESRV TOPIC ACCOUNT SECRET COUNT SIZE: sends COUNT messages of SIZE bytes (under 4096, or the client compresses
 * them), one after the other, and prints {"sent"} with the milliseconds that it took, {"refused", "code"}
 * or, for what is no refusal, {"failed"}.
 */
public class Quota {
    public static void main(String[] args) throws Exception {
        SessionCredentials account = new SessionCredentials(args[2], args[3]);
        DefaultMQProducer producer = new DefaultMQProducer("metered", new AclClientRPCHook(account));
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000); // the first send of a cold JVM on a busy machine
        producer.start();
        byte[] body = ".".repeat(Integer.parseInt(args[5])).getBytes(StandardCharsets.UTF_8);
        for (int i = 0; i < Integer.parseInt(args[4]); i++) {
            long began = System.nanoTime();
            try {
                SendResult result = producer.send(new Message(args[1], body));
                long took = (System.nanoTime() - began) / 1_000_000;
                System.out.println(JSON.toJSONString(Map.of("sent", i, "took", took, "status", result.getSendStatus())));
            } catch (MQBrokerException error) {
                String text = String.valueOf(error.getErrorMessage());
                System.out.println(JSON.toJSONString(Map.of("refused", text, "code", error.getResponseCode())));
            } catch (Exception error) {
                System.out.println(JSON.toJSONString(Map.of("failed", error.toString())));
            }
        }
        System.exit(0);
    }
}

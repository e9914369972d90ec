import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Mqadmin: runs mqadmin commands in one JVM, one after the other. Each line of the standard input is the JSON list of a
 * command's arguments; each is answered by the line {"said": all that it printed}. A command that calls System.exit
 * (for wrong options, and for -h) ends the program.
 */
public class Mqadmin {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(said, true, "UTF-8");
            System.setOut(captured);
            System.setErr(captured);
            MQAdminStartup.main0(JSON.parseArray(line, String.class).toArray(new String[0]), null);
            captured.flush();
            answers.println(JSON.toJSONString(Map.of("said", said.toString("UTF-8"))));
            answers.flush();
        }
        System.exit(0);
    }
}

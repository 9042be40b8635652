package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** One mqadmin command, with what it printed as the answer. Commands take turns: each prints to the JVM's own output. */
final class MqAdmin {
    synchronized Object run(JSONObject request) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(request.getJSONArray("arguments").toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return Map.of(
            "output", printed.toString(StandardCharsets.UTF_8),
            "errors", complained.toString(StandardCharsets.UTF_8));
    }
}

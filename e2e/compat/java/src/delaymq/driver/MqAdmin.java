package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** One mqadmin command, with its output as result. Commands run one at a time: each prints to the JVM's own output. */
final class MqAdmin {
    private static final long ENDLESS_LIMIT_MS = 30_000;
    private static final long LOOK_MS = 20;

    /** Return the names of all commands of these tools. */
    synchronized Object names(JSONObject request) {
        Versions.commands().clear();
        MQAdminStartup.initCommand();
        List<String> names = new ArrayList<>();
        for (SubCommand command : Versions.commands()) {
            names.add(command.commandName());
        }
        return names;
    }

    /**
     * Fields: arguments; lines: interrupt the command after this number of lines; home: the folder whose conf/tools.yml
     * has the account for signatures.
     */
    synchronized Object run(JSONObject request) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        String[] arguments = request.getJSONArray("arguments").toArray(new String[0]);
        // Some commands keep their clients in fields, which suits a process that runs only one.
        Versions.commands().clear();
        try (Versions.Home home = new Versions.Home(request.getString("home"))) {
            if (request.containsKey("lines")) {
                runUntil(printed, request.getIntValue("lines"), arguments, home.hook());
            } else {
                MQAdminStartup.main0(arguments, home.hook());
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return Map.of(
            "output", printed.toString(StandardCharsets.UTF_8),
            "errors", complained.toString(StandardCharsets.UTF_8));
    }

    private static void runUntil(ByteArrayOutputStream printed, int lines, String[] arguments, RPCHook hook)
        throws Exception {
        Thread command = new Thread(() -> MQAdminStartup.main0(arguments, hook), "mqadmin");
        command.start();
        long deadline = System.currentTimeMillis() + ENDLESS_LIMIT_MS;
        while (command.isAlive() && printed.toString(StandardCharsets.UTF_8).lines().count() < lines) {
            if (System.currentTimeMillis() > deadline) {
                break;
            }
            Thread.sleep(LOOK_MS);
        }
        command.interrupt();
        command.join(ENDLESS_LIMIT_MS);
    }
}

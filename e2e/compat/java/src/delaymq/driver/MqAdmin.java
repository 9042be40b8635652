package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** One mqadmin command, with what it printed as the answer. Commands take turns: each prints to the JVM's own output. */
final class MqAdmin {
    private static final long ENDLESS_LIMIT_MS = 30_000;
    private static final long LOOK_MS = 20;

    /** Some commands keep their clients in themselves, which is right for a process that runs one. */
    private static final class Startup extends MQAdminStartup {
        static void forget() {
            subCommandList.clear();
        }

        static List<String> names() {
            forget();
            initCommand();
            List<String> names = new ArrayList<>();
            for (SubCommand command : subCommandList) {
                names.add(command.commandName());
            }
            return names;
        }
    }

    /** The names of all commands of these tools. */
    synchronized Object names(JSONObject request) {
        return Startup.names();
    }

    /**
     * Fields: arguments; lines: interrupt the command when it has printed so many; home: the folder whose conf/tools.yml
     * has the account that signs.
     */
    synchronized Object run(JSONObject request) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        String[] arguments = request.getJSONArray("arguments").toArray(new String[0]);
        Startup.forget();
        Object home = homeField().get(null);
        try {
            if (request.containsKey("home")) {
                homeField().set(null, request.getString("home"));
            }
            if (request.containsKey("lines")) {
                runUntil(printed, request.getIntValue("lines"), arguments);
            } else {
                MQAdminStartup.main0(arguments, null);
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
            homeField().set(null, home);
        }
        return Map.of(
            "output", printed.toString(StandardCharsets.UTF_8),
            "errors", complained.toString(StandardCharsets.UTF_8));
    }

    /** mqadmin looks once where it was installed; here several installations share a process. */
    private static Field homeField() throws NoSuchFieldException {
        Field field = MQAdminStartup.class.getDeclaredField("rocketmqHome");
        field.setAccessible(true);
        return field;
    }

    private static void runUntil(ByteArrayOutputStream printed, int lines, String[] arguments) throws Exception {
        Thread command = new Thread(() -> MQAdminStartup.main0(arguments, null), "mqadmin");
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

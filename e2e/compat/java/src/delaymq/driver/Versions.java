package delaymq.driver;

import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** What RocketMQ 5 calls otherwise: src5 has the same class for it. */
final class Versions {
    private Versions() {}

    private static final class Startup extends MQAdminStartup {
        static List<SubCommand> commands() {
            return subCommandList;
        }
    }

    /** mqadmin's commands, which it adds to this list at each start. */
    static List<SubCommand> commands() {
        return Startup.commands();
    }

    /** One command of mqadmin, installed in a folder; null: where the JVM's properties say. */
    static void mqadmin(String[] arguments, String home) throws ReflectiveOperationException {
        // mqadmin looks once where it was installed; here several installations share a process.
        Field field = MQAdminStartup.class.getDeclaredField("rocketmqHome");
        field.setAccessible(true);
        Object before = field.get(null);
        try {
            if (home != null) {
                field.set(null, home);
            }
            MQAdminStartup.main0(arguments, null);
        } finally {
            field.set(null, before);
        }
    }

    /** By offset message id. */
    static MessageExt viewMessage(DefaultMQAdminExt admin, String messageId) throws Exception {
        return admin.viewMessage(messageId);
    }

    static void createTopic(DefaultMQAdminExt admin, String key, String topic, int queues) throws Exception {
        admin.createTopic(key, topic, queues);
    }

    static ConsumeMessageDirectlyResult consumeMessageDirectly(
        MQClientAPIImpl calls, String broker, String group, String clientId, String messageId, long timeoutMs)
        throws Exception {
        return calls.consumeMessageDirectly(broker, group, clientId, messageId, timeoutMs);
    }

    static boolean resumeCheckHalfMessage(DefaultMQAdminExt admin, String offsetMessageId) throws Exception {
        return admin.resumeCheckHalfMessage(offsetMessageId);
    }
}

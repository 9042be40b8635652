package delaymq.driver;

import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Calls that differ in RocketMQ 5, for which src5 has a class of the same name. */
final class Versions {
    private Versions() {}

    private static final class Startup extends MQAdminStartup {
        static List<SubCommand> commands() {
            return subCommandList;
        }
    }

    /** mqadmin's commands, which it appends to this list at each start. */
    static List<SubCommand> commands() {
        return Startup.commands();
    }

    /** mqadmin's installation folder until it is closed; null: as in the JVM's properties. */
    static final class Home implements AutoCloseable {
        private final Field field;
        private final Object before;

        Home(String path) throws ReflectiveOperationException {
            // mqadmin reads its installation folder only once; here several installations share a process.
            field = MQAdminStartup.class.getDeclaredField("rocketmqHome");
            field.setAccessible(true);
            before = field.get(null);
            if (path != null) {
                field.set(null, path);
            }
        }

        /** Return the hook that signs its commands; null: mqadmin reads conf/tools.yml itself. */
        RPCHook hook() {
            return null;
        }

        @Override
        public void close() throws ReflectiveOperationException {
            field.set(null, before);
        }
    }

    /** Return a message by offset message id. */
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

    /** Set a user property: this client knows no due times, and does not reserve their names. */
    static void setDelayTimeSec(Message message, long seconds) {
        message.putUserProperty("TIMER_DELAY_SEC", String.valueOf(seconds));
    }

    static void setDelayTimeMs(Message message, long timeMs) {
        message.putUserProperty("TIMER_DELAY_MS", String.valueOf(timeMs));
    }

    static void setDeliverTimeMs(Message message, long timeMs) {
        message.putUserProperty("TIMER_DELIVER_MS", String.valueOf(timeMs));
    }

    /** Return null: this client ignores the field of the response. */
    static String recallHandle(SendResult result) {
        return null;
    }

    static String recallMessage(DefaultMQProducer producer, String topic, String handle) {
        throw new UnsupportedOperationException("this client cannot recall messages");
    }
}

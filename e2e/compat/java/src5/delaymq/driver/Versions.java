package delaymq.driver;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Replacement of the class of the same name in src, with RocketMQ 5's calls. */
final class Versions {
    /** Topic for requests that require one, which a broker of 4.9 ignores. */
    private static final String ANY_TOPIC = "any";

    private Versions() {}

    private static final class Startup extends MQAdminStartup {
        static List<SubCommand> commands() {
            return SUB_COMMANDS;
        }
    }

    static List<SubCommand> commands() {
        return Startup.commands();
    }

    /** The folder of mqadmin is a constant in this version, but the hook can be passed. */
    static final class Home implements AutoCloseable {
        private final String path;

        Home(String path) throws ReflectiveOperationException {
            this.path = path;
        }

        RPCHook hook() {
            return path == null ? null : AclUtils.getAclRPCHook(path + MixAll.ACL_CONF_TOOLS_FILE);
        }

        @Override
        public void close() throws ReflectiveOperationException {}
    }

    static MessageExt viewMessage(DefaultMQAdminExt admin, String messageId) throws Exception {
        return admin.viewMessage(ANY_TOPIC, messageId);
    }

    static void createTopic(DefaultMQAdminExt admin, String key, String topic, int queues) throws Exception {
        admin.createTopic(key, topic, queues, Map.of());
    }

    static ConsumeMessageDirectlyResult consumeMessageDirectly(
        MQClientAPIImpl calls, String broker, String group, String clientId, String messageId, long timeoutMs)
        throws Exception {
        return calls.consumeMessageDirectly(broker, group, clientId, ANY_TOPIC, messageId, timeoutMs);
    }

    static boolean resumeCheckHalfMessage(DefaultMQAdminExt admin, String offsetMessageId) throws Exception {
        return admin.resumeCheckHalfMessage(ANY_TOPIC, offsetMessageId);
    }

    static void setDelayTimeSec(Message message, long seconds) {
        message.setDelayTimeSec(seconds);
    }

    static void setDelayTimeMs(Message message, long timeMs) {
        message.setDelayTimeMs(timeMs);
    }

    static void setDeliverTimeMs(Message message, long timeMs) {
        message.setDeliverTimeMs(timeMs);
    }

    static String recallHandle(SendResult result) {
        return result.getRecallHandle();
    }

    /** Return the unique id of the cancelled message. */
    static String recallMessage(DefaultMQProducer producer, String topic, String handle) throws Exception {
        return producer.recallMessage(topic, handle);
    }
}

package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPullConsumer: one pull at a time, from any offset, with or without long polling. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private final Clients clients;

    PullConsumers(Clients clients) {
        this.clients = clients;
    }

    Object start(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.getString("group"), Acl.hook(request));
        clients.configure(consumer, request);
        if (request.containsKey("suspendMs")) {
            consumer.setBrokerSuspendMaxTimeMillis(request.getLongValue("suspendMs"));
        }
        consumer.start();
        Clients.keepConnections(request, consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory());
        return clients.started(request, consumer, consumer::shutdown, consumer);
    }

    /** Fields: topic, queueId, expression, offset, maxCount, wait (a long poll), sql (SQL92, no long poll). */
    Object pull(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = clients.get(request, DefaultMQPullConsumer.class);
        MessageQueue queue = Messages.queue(request);
        String expression = request.getString("expression");
        long offset = request.getLongValue("offset");
        int maxCount = request.getIntValue("maxCount");
        PullResult result = request.getBooleanValue("sql")
            ? consumer.pull(queue, MessageSelector.bySql(expression), offset, maxCount)
            : request.getBooleanValue("wait")
            ? consumer.pullBlockIfNotFound(queue, expression, offset, maxCount)
            : consumer.pull(queue, expression, offset, maxCount);
        Map<String, Object> fields = new HashMap<>();
        fields.put("arrivalTimestamp", System.currentTimeMillis());
        fields.put("status", result.getPullStatus().name());
        fields.put("nextBeginOffset", result.getNextBeginOffset());
        fields.put("minOffset", result.getMinOffset());
        fields.put("maxOffset", result.getMaxOffset());
        fields.put("messages", Messages.toJson(result.getMsgFoundList()));
        return fields;
    }

    Object queues(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = clients.get(request, DefaultMQPullConsumer.class);
        return Messages.toJsonQueues(consumer.fetchSubscribeMessageQueues(request.getString("topic")));
    }

    Object offset(JSONObject request) throws Exception {
        return clients.get(request, DefaultMQPullConsumer.class).fetchConsumeOffset(Messages.queue(request), true);
    }

    Object updateOffset(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = clients.get(request, DefaultMQPullConsumer.class);
        MessageQueue queue = Messages.queue(request);
        consumer.updateConsumeOffset(queue, request.getLongValue("offset"));
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        return null;
    }

    /** Pull the message at an offset and send it back with a delay level (negative: to the dead-letter topic). */
    Object sendBack(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = clients.get(request, DefaultMQPullConsumer.class);
        MessageQueue queue = Messages.queue(request);
        MessageExt message =
            consumer.pull(queue, "*", request.getLongValue("offset"), 1).getMsgFoundList().get(0);
        consumer.sendMessageBack(message, request.getIntValue("delayLevel"), queue.getBrokerName());
        return null;
    }
}

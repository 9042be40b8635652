package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** DefaultMQPushConsumer whose listener reports each message and fails as often as configured. */
final class PushConsumers {
    /** Time for a listener that reported a message to return, before shutdown stores the offsets. */
    private static final long LISTENER_END_LIMIT_MS = 2000;

    private final Clients clients;
    private final Output output;
    private final PullTargets pullTargets;

    PushConsumers(Clients clients, Output output, PullTargets pullTargets) {
        this.clients = clients;
        this.output = output;
        this.pullTargets = pullTargets;
    }

    /**
     * Fields: group; subscriptions topic → tag expression; sql (they are SQL92); orderly; broadcasting; from (a
     * ConsumeFromWhere); timestamp (yyyyMMddHHmmss); maxReconsumeTimes; threads; failTimes (a message fails while its
     * reconsumeTimes is below); retryLevel (delayLevelWhenNextConsume); suspendMs (pause of an orderly queue after a
     * failure); trace and traceTopic (message trace); recordPulls (record the broker of each pull).
     */
    Object start(JSONObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.getString("group"), pullTargets.hook(request), new AllocateMessageQueueAveragely(),
            request.getBooleanValue("trace"), request.getString("traceTopic"));
        clients.configure(consumer, request);
        for (Map.Entry<String, Object> entry : request.getJSONObject("subscriptions").entrySet()) {
            if (request.getBooleanValue("sql")) {
                consumer.subscribe(entry.getKey(), MessageSelector.bySql((String) entry.getValue()));
            } else {
                consumer.subscribe(entry.getKey(), (String) entry.getValue());
            }
        }
        if (request.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (request.containsKey("from")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        }
        if (request.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(request.getString("timestamp"));
        }
        if (request.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(request.getIntValue("maxReconsumeTimes"));
        }
        if (request.containsKey("threads")) {
            consumer.setConsumeThreadMin(request.getIntValue("threads"));
            consumer.setConsumeThreadMax(request.getIntValue("threads"));
        }
        consumer.setAwaitTerminationMillisWhenShutdown(LISTENER_END_LIMIT_MS);
        listen(consumer, request);
        consumer.start();
        return clients.started(request, consumer, consumer::shutdown, consumer);
    }

    private void listen(DefaultMQPushConsumer consumer, JSONObject request) {
        String client = request.getString("client");
        int failTimes = request.getIntValue("failTimes");
        int retryLevel = request.getIntValue("retryLevel");
        long suspendMs = request.getLongValue("suspendMs");
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                if (accept(client, messages, failTimes)) {
                    return ConsumeOrderlyStatus.SUCCESS;
                }
                context.setSuspendCurrentQueueTimeMillis(suspendMs);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (accept(client, messages, failTimes)) {
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                context.setDelayLevelWhenNextConsume(retryLevel);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
    }

    private boolean accept(String client, List<MessageExt> messages, int failTimes) {
        long arrivalTimestamp = System.currentTimeMillis();
        boolean accepted = true;
        for (MessageExt message : messages) {
            Map<String, Object> fields = Messages.toJson(message);
            fields.put("arrivalTimestamp", arrivalTimestamp);
            fields.put("client", client);
            output.event("message", fields);
            accepted &= message.getReconsumeTimes() >= failTimes;
        }
        return accepted;
    }

    Object suspend(JSONObject request) {
        clients.get(request, DefaultMQPushConsumer.class).suspend();
        return null;
    }

    Object resume(JSONObject request) {
        clients.get(request, DefaultMQPushConsumer.class).resume();
        return null;
    }
}

package delaymq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultLitePullConsumer: subscribed (queues shared by the group) or with assigned queues. */
final class LitePullConsumers {
    private final Clients clients;

    LitePullConsumers(Clients clients) {
        this.clients = clients;
    }

    /** Fields: group; topic and expression (sql: SQL92), or assign (queue ids of topic); autoCommit; from. */
    Object start(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"), Acl.hook(request));
        clients.configure(consumer, request);
        consumer.setAutoCommit(request.getBooleanValue("autoCommit"));
        if (request.containsKey("from")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        }
        if (request.getBooleanValue("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("expression")));
        } else if (!request.containsKey("assign")) {
            consumer.subscribe(request.getString("topic"), request.getString("expression"));
        }
        consumer.start();
        if (request.containsKey("assign")) {
            consumer.assign(queues(request.getString("topic"), request.getJSONArray("assign")));
        }
        return clients.started(request, consumer, consumer::shutdown, consumer);
    }

    private static List<MessageQueue> queues(String topic, JSONArray queueIds) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < queueIds.size(); i++) {
            queues.add(new MessageQueue(topic, "broker-a", queueIds.getIntValue(i)));
        }
        return queues;
    }

    Object poll(JSONObject request) {
        DefaultLitePullConsumer consumer = clients.get(request, DefaultLitePullConsumer.class);
        return Messages.toJson(consumer.poll(request.getLongValue("timeoutMs")));
    }

    Object queues(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = clients.get(request, DefaultLitePullConsumer.class);
        return Messages.toJsonQueues(consumer.fetchMessageQueues(request.getString("topic")));
    }

    Object seek(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = clients.get(request, DefaultLitePullConsumer.class);
        consumer.seek(Messages.queue(request), request.getLongValue("offset"));
        return null;
    }

    @SuppressWarnings("deprecation") // since RocketMQ 5, whose commit() does not wait
    Object commit(JSONObject request) {
        clients.get(request, DefaultLitePullConsumer.class).commitSync();
        return null;
    }

    Object committed(JSONObject request) throws Exception {
        return clients.get(request, DefaultLitePullConsumer.class).committed(Messages.queue(request));
    }
}

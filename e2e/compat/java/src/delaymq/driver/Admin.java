package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.Connection;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: requests that programs, rather than users of mqadmin, send to a broker. */
final class Admin {
    /** Its default of 5 s is too short for the first request to a broker on a shared machine. */
    private static final long TIMEOUT_MS = 60_000;

    private final Clients clients;

    Admin(Clients clients) {
        this.clients = clients;
    }

    Object start(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Acl.hook(request), TIMEOUT_MS);
        clients.configure(admin, request);
        admin.start();
        return clients.started(request, admin, admin::shutdown, admin);
    }

    /** Return a message by offset message id, or by unique id if topic is given. */
    Object viewMessage(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        String messageId = request.getString("messageId");
        return Messages.toJson(request.containsKey("topic")
            ? admin.viewMessage(request.getString("topic"), messageId)
            : Versions.viewMessage(admin, messageId));
    }

    Object queryMessage(JSONObject request) throws Exception {
        QueryResult result = clients.get(request, DefaultMQAdminExt.class).queryMessage(
            request.getString("topic"), request.getString("key"), request.getIntValue("maxCount"),
            request.getLongValue("beginMs"), request.getLongValue("endMs"));
        Map<String, Object> fields = new HashMap<>();
        fields.put("indexLastUpdateTimestamp", result.getIndexLastUpdateTimestamp());
        fields.put("messages", Messages.toJson(result.getMessageList()));
        return fields;
    }

    Object offsets(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        MessageQueue queue = Messages.queue(request);
        return Map.of(
            "min", admin.minOffset(queue),
            "max", admin.maxOffset(queue),
            "earliestStoreTimestamp", admin.earliestMsgStoreTime(queue));
    }

    Object searchOffset(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        return admin.searchOffset(Messages.queue(request), request.getLongValue("timestamp"));
    }

    Object createTopic(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        int queues = request.getIntValue("queues");
        Versions.createTopic(admin, request.getString("key"), request.getString("topic"), queues);
        return null;
    }

    Object updateTopic(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        int queues = request.getIntValue("queues");
        TopicConfig config =
            new TopicConfig(request.getString("topic"), queues, queues, request.getIntValue("permission"));
        admin.createAndUpdateTopicConfig(request.getString("broker"), config);
        return null;
    }

    Object consumeStats(JSONObject request) throws Exception {
        ConsumeStats stats =
            clients.get(request, DefaultMQAdminExt.class).examineConsumeStats(request.getString("group"));
        List<Object> queues = new ArrayList<>();
        stats.getOffsetTable().forEach((queue, offsets) -> queues.add(Map.of(
            "topic", queue.getTopic(), "queueId", queue.getQueueId(), "brokerOffset", offsets.getBrokerOffset(),
            "consumerOffset", offsets.getConsumerOffset())));
        return queues;
    }

    /** Return the client ids of a group's connections. */
    Object consumers(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        List<Object> clientIds = new ArrayList<>();
        for (Connection connection :
            admin.examineConsumerConnectionInfo(request.getString("group")).getConnectionSet()) {
            clientIds.add(connection.getClientId());
        }
        return clientIds;
    }
}

package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Requests of DefaultMQAdminExt to members of a group, sent through their broker, for which mqadmin has no command. */
final class Members {
    private final Clients clients;

    Members(Clients clients) {
        this.clients = clients;
    }

    /** Fields: topic, group, member (a client id; all without it). Returns lines of client id, queue and offset. */
    Object offsets(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        String member = request.containsKey("member") ? request.getString("member") : "";
        Map<String, Map<MessageQueue, Long>> found =
            admin.getConsumeStatus(request.getString("topic"), request.getString("group"), member);
        List<Object> lines = new ArrayList<>();
        found.forEach((clientId, offsets) -> offsets.forEach((queue, offset) -> {
            Map<String, Object> line = new HashMap<>();
            line.put("clientId", clientId);
            line.put("queueId", queue.getQueueId());
            line.put("offset", offset);
            lines.add(line);
        }));
        return lines;
    }
}

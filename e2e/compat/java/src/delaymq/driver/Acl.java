package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** AclClientRPCHook: signs the requests of clients started with credentials. */
final class Acl {
    private Acl() {}

    /** Return the hook for credentials {accessKey, secretKey, securityToken}, or null without them. */
    static RPCHook hook(JSONObject request) {
        JSONObject credentials = request.getJSONObject("credentials");
        if (credentials == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(
            credentials.getString("accessKey"), credentials.getString("secretKey"),
            credentials.getString("securityToken")));
    }

    /** Return the signed frame of a request with code, fields (name → text) and body (base64); binary: header type. */
    static Object sign(JSONObject request) {
        RemotingCommand command = RemotingCommand.createRequestCommand(request.getIntValue("code"), null);
        HashMap<String, String> fields = new HashMap<>();
        request.getJSONObject("fields").forEach((name, value) -> fields.put(name, (String) value));
        command.setExtFields(fields);
        command.setOpaque(request.getIntValue("opaque"));
        command.setSerializeTypeCurrentRPC(
            request.getBooleanValue("binary") ? SerializeType.ROCKETMQ : SerializeType.JSON);
        byte[] body = Base64.getDecoder().decode(request.getString("body"));
        command.setBody(body.length == 0 ? null : body);
        hook(request).doBeforeRequest("127.0.0.1:10911", command);
        ByteBuffer frame = command.encode();
        byte[] bytes = new byte[frame.remaining()];
        frame.get(bytes);
        return Map.of("frame", Base64.getEncoder().encodeToString(bytes));
    }
}
